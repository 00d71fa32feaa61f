package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"connectrpc.com/connect"
)

func opOf(s connect.Spec) string { return s.Procedure[strings.LastIndexByte(s.Procedure, '/')+1:] }

// measured counts and times every call.
func (s *Server) measured(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		began := time.Now()
		s.metrics.inFlight.Inc()
		defer s.metrics.inFlight.Dec()
		res, err := next(ctx, req)
		code := "ok"
		if err != nil {
			code = connect.CodeOf(err).String()
		}
		s.metrics.duration.WithLabelValues(opOf(req.Spec()), code).Observe(time.Since(began).Seconds())
		return res, err
	}
}

// limited bounds the calls that are carried out at once: beyond that, waiting only makes every caller late.
func (s *Server) limited(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		defer s.inFlight.Add(-1)
		if s.inFlight.Add(1) > int64(s.opt.MaxInFlight) {
			return nil, connect.NewError(connect.CodeResourceExhausted,
				fmt.Errorf("this router carries out %d calls at once and no more: nothing was done, retry with the same key", s.opt.MaxInFlight))
		}
		return next(ctx, req)
	}
}

// bounded gives a call a deadline: the caller's, within MaxDeadline, or the default. A caller that hangs up does not
// stop a call half-way: that would only leave its outcome unknown.
func (s *Server) bounded(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		now := time.Now()
		end, asked := ctx.Deadline()
		if !asked {
			end = now.Add(s.opt.Deadline)
		}
		if last := now.Add(s.opt.MaxDeadline); end.After(last) {
			end = last
		}
		if !end.After(now) {
			return nil, connect.NewError(connect.CodeUnavailable, errors.New("the deadline had passed before the call began: nothing was done"))
		}
		ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), end)
		defer cancel()
		return next(ctx, req)
	}
}

// recovered ends the call in which a panic came up, and nothing else.
func (s *Server) recovered(ctx context.Context, spec connect.Spec, _ http.Header, v any) error {
	s.metrics.panics.WithLabelValues(opOf(spec)).Inc()
	s.opt.Logger.ErrorContext(ctx, "a call panicked", "op", opOf(spec), "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	return connect.NewError(connect.CodeInternal, errors.New(internalText))
}
