package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/api/twinhold/v1/twinholdv1connect"
	"github.com/twinhold/twinhold/config"
)

// MaxBody is the largest request, in bytes, once it is unpacked: 1,000 lines, each in its longest form, fit.
const MaxBody = 512 << 10

// Options configure a Server.
type Options struct {
	Router Router
	// PodOf names a shop's pod, for the log; "" where it has none. Nil: the log does without.
	PodOf func(shop int64) string
	// Pods are shown and moved by the admin listener.
	Pods []Pod
	// DataListen and AdminListen are addresses; port 0 takes a free one.
	DataListen, AdminListen string
	// DataTLS and AdminTLS name certificates; without one a listener is cleartext.
	DataTLS, AdminTLS config.TLS
	// Tokens may use the admin listener, by their roles. Empty: everybody on this machine may, and it listens on loopback only.
	Tokens Tokens
	// Deadline is that of a call whose caller gave none, default 5 s; MaxDeadline the longest one, default 15 s.
	Deadline, MaxDeadline time.Duration
	// MaxInFlight is how many calls of the data API are carried out at once: one more is answered resource_exhausted.
	// Default 4096.
	MaxInFlight int
	// Probe bounds one readiness check of one pod. Default 1 s.
	Probe      time.Duration
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Gatherer   prometheus.Gatherer
}

func (o *Options) defaults() {
	if o.Deadline == 0 {
		o.Deadline = 5 * time.Second
	}
	if o.MaxDeadline == 0 {
		o.MaxDeadline = 15 * time.Second
	}
	if o.MaxInFlight == 0 {
		o.MaxInFlight = 4096
	}
	if o.Probe == 0 {
		o.Probe = time.Second
	}
	if o.PodOf == nil {
		o.PodOf = func(int64) string { return "" }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Registerer == nil || o.Gatherer == nil {
		r := prometheus.NewRegistry()
		o.Registerer, o.Gatherer = r, r
	}
}

// ErrOpenAdmin: the admin listener would be open to other machines without a token.
var ErrOpenAdmin = errors.New("an admin listener that is not on loopback needs admin.tokens_file")

func (o *Options) validate() error {
	switch {
	case o.Router == nil:
		return errors.New("server: Options.Router is nil")
	case o.MaxInFlight < 0:
		return errors.New("server: Options.MaxInFlight is negative")
	default:
		return nil
	}
}

// isLoopbackHost is config.IsLoopback for a Host header, which may have no port.
func isLoopbackHost(host string) bool {
	if config.IsLoopback(host) {
		return true
	}
	return isLoopbackName(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
}

func isLoopbackName(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// Server is the two listeners. Start it, and Shutdown it.
type Server struct {
	opt         Options
	metrics     *metrics
	causes      *causes
	data, admin *http.Server
	pods        atomic.Pointer[[]Pod]
	tokens      atomic.Pointer[Tokens]
	inFlight    atomic.Int64

	dataCert, adminCert certificate
	dataAddr, adminAddr net.Addr
	draining            atomic.Bool
	serving             sync.WaitGroup
	failed              chan error // 1 deep: the first listener that broke
}

// New makes a server.
func New(opt Options) (*Server, error) {
	opt.defaults()
	if err := opt.validate(); err != nil {
		return nil, err
	}
	s := &Server{opt: opt, metrics: newMetrics(opt.Registerer), causes: newCauses(opt.Logger), failed: make(chan error, 1)}
	s.SetPods(opt.Pods)
	if err := s.SetTokens(opt.Tokens); err != nil {
		return nil, err
	}
	if err := s.loadTLS(); err != nil {
		return nil, err
	}
	s.data = s.httpServer(s.dataHandler(), &s.dataCert)
	s.admin = s.httpServer(s.adminHandler(), &s.adminCert)
	return s, nil
}

func (s *Server) dataHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(twinholdv1connect.NewReservationServiceHandler(&handlers{router: s.opt.Router},
		connect.WithCodec(strictJSON{"json"}), connect.WithCodec(strictJSON{"json; charset=utf-8"}),
		connect.WithReadMaxBytes(MaxBody),
		connect.WithInterceptors(connect.UnaryInterceptorFunc(s.measured), connect.UnaryInterceptorFunc(s.limited)),
		connect.WithRecover(s.recovered),
		connect.WithInterceptors(connect.UnaryInterceptorFunc(s.explained), connect.UnaryInterceptorFunc(s.bounded)),
	))
	mux.HandleFunc("GET /pods/{pod}", s.whose)
	return mux
}

// whose tells which stores a pod has, as a fingerprint: a client that has a configuration of its own finds out
// whether this router is of the same one.
func (s *Server) whose(w http.ResponseWriter, r *http.Request) {
	for _, p := range s.podsNow() {
		if p.ID == r.PathValue("pod") && p.Stores != "" {
			s.writeJSON(w, http.StatusOK, Identity{Service: Service, Pod: p.ID, Stores: p.Stores})
			return
		}
	}
	s.writeJSON(w, http.StatusNotFound, problem{"not_found", "this router has no such pod"})
}

// Service is the name by which a router tells that it is one.
const Service = "twinhold"

// Identity is what GET /pods/{pod} of the data listener answers.
type Identity struct {
	Service string `json:"service"`
	Pod     string `json:"pod"`
	Stores  string `json:"stores"`
}

// The bounds of a connection: a caller that sends nothing, or slowly, does not hold one for good.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 20 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 16 << 10
)

func (s *Server) httpServer(h http.Handler, cert *certificate) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler: h, TLSConfig: cert.config(), Protocols: protocols, MaxHeaderBytes: maxHeader,
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, IdleTimeout: idleTimeout,
		ErrorLog: slog.NewLogLogger(s.opt.Logger.Handler(), slog.LevelDebug),
	}
}

// Start opens both listeners and serves them.
func (s *Server) Start(ctx context.Context) error {
	var lc net.ListenConfig
	data, err := lc.Listen(ctx, "tcp", s.opt.DataListen)
	if err != nil {
		return fmt.Errorf("listen for the data API (data.listen): %w", err)
	}
	admin, err := lc.Listen(ctx, "tcp", s.opt.AdminListen)
	if err != nil {
		return errors.Join(fmt.Errorf("listen for the admin API (admin.listen): %w", err), data.Close())
	}
	s.dataAddr, s.adminAddr = data.Addr(), admin.Addr()
	s.serve(s.data, data)
	s.serve(s.admin, admin)
	return nil
}

func (s *Server) serve(h *http.Server, l net.Listener) {
	s.serving.Go(func() {
		serve := h.Serve
		if h.TLSConfig != nil {
			serve = func(l net.Listener) error { return h.ServeTLS(l, "", "") }
		}
		if err := serve(l); !errors.Is(err, http.ErrServerClosed) {
			select {
			case s.failed <- fmt.Errorf("listener %s: %w", l.Addr(), err):
			default:
			}
		}
	})
}

// DataAddr is where the data API listens, once started.
func (s *Server) DataAddr() string { return s.dataAddr.String() }

// AdminAddr is where the admin API listens, once started.
func (s *Server) AdminAddr() string { return s.adminAddr.String() }

// Failed tells of a listener that broke.
func (s *Server) Failed() <-chan error { return s.failed }

// Shutdown stops accepting, answers what was taken, and ends when all is answered or the context does: then it cuts
// what is left, and says so. Meanwhile the admin listener answers that the router is not ready.
func (s *Server) Shutdown(ctx context.Context) error {
	s.draining.Store(true)
	err := s.data.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("calls were cut before their answer: %w", err), s.data.Close())
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opt.Probe+time.Second)
	defer cancel()
	if s.admin.Shutdown(last) != nil {
		err = errors.Join(err, s.admin.Close()) // a scrape that hangs is nobody's loss
	}
	s.serving.Wait()
	s.causes.close()
	return err
}
