package lab

import (
	"errors"
	"fmt"
	"slices"
)

// Options say where the steps are shown. DSN and Redis are required.
type Options struct {
	// DSN reaches the MySQL. The schema that it names, if any, is not used.
	DSN string
	// Redis is the URL of a Redis.
	Redis string
	// Only are the numbers of the steps to show. Default: all.
	Only []int
	// Each, if not nil, is given each step as soon as it is done.
	Each func(Step) error
}

func (o Options) validate() error {
	var errs []error
	if o.DSN == "" {
		errs = append(errs, errors.New("DSN is empty: give user:password@tcp(host:port)/"))
	}
	if o.Redis == "" {
		errs = append(errs, errors.New("the Redis URL is empty: give redis://host:port/db"))
	}
	for _, n := range o.Only {
		if n < 1 || n > Steps {
			errs = append(errs, fmt.Errorf("there is no step %d: use 1 to %d", n, Steps))
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("lab options: %w", errors.Join(errs...))
	}
	return nil
}

func (o Options) wants(n int) bool { return len(o.Only) == 0 || slices.Contains(o.Only, n) }
