package legacyredis

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"
)

// heard learns from what a server answered.
func (p *place) heard(reign uint64, err error) {
	if to, ok := redirect(checked(err)); ok {
		if to == "" {
			p.doubt(reign)
			return
		}
		p.moved(to)
		return
	}
	if hasPrefix(checked(err), "READONLY", "CLUSTERDOWN", "MASTERDOWN") {
		p.doubt(reign)
	}
}

// redirect reads 'MOVED slot host:port'. The host may be missing: then the address is not known.
func redirect(err error) (addr string, ok bool) {
	if !redis.HasErrorPrefix(err, "MOVED") {
		return "", false
	}
	f := strings.Fields(err.Error())
	if len(f) == 3 && !strings.HasPrefix(f[2], ":") && !strings.HasPrefix(f[2], "?") {
		addr = f[2]
	}
	return addr, true
}

// elsewhereError: the server that answered does not hold the pod, or not all of it while its slot is being moved. It
// did nothing. It is no redis.Error: it says nothing of the pod.
type elsewhereError struct{ cause error }

func (e elsewhereError) Error() string { return e.cause.Error() }

// elsewhere gives the error of a command as the store is to see it.
func elsewhere(err error) error {
	if hasPrefix(err, "MOVED", "ASK", "TRYAGAIN") {
		return elsewhereError{err}
	}
	return err
}

// placeHook lets a place hear every answer.
type placeHook struct{ place *place }

var _ redis.Hook = placeHook{}

func (placeHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h placeHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		reign := h.place.reign.Load()
		err := next(ctx, cmd)
		if err == nil {
			return nil
		}
		h.place.heard(reign, err)
		err = elsewhere(err)
		cmd.SetErr(err)
		return err
	}
}

func (h placeHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		reign := h.place.reign.Load()
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			if failed := cmd.Err(); failed != nil {
				h.place.heard(reign, failed)
				cmd.SetErr(elsewhere(failed))
			}
		}
		return elsewhere(err)
	}
}
