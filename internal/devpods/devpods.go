// Package devpods puts pods on private servers: it starts them (or takes given ones), creates the schemas, and writes
// a configuration that is ready to use. The demo, replay, the devstack command and the tests stand on it.
//
// It never touches a server that it did not start, unless it was named.
package devpods

import (
	"bytes"
	"context"
	_ "embed" // the configuration's template
	"errors"
	"fmt"
	"strconv"
	"text/template"

	"github.com/go-sql-driver/mysql"

	"github.com/twinhold/twinhold/config"
	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/mysqlstore"
)

// Options say what to set up.
type Options struct {
	// Pods is the number of pods. Default 1. Pod N has the shops 1000(N-1)+1 to 1000N.
	Pods int
	// MySQL is a DSN without a schema, Redis a URL: given servers in place of private ones; both or none.
	MySQL, Redis string
	// Short makes the payment bounds so short that a hold may last two seconds; else they are the defaults.
	Short bool
	// Legacy declares stage legacy in place of shadow.
	Legacy   bool
	Progress func(string)
	// Stack, if not nil, has the servers to use: its owner closes it.
	Stack *devstack.Stack
}

// Pods are pods on servers, and their configuration.
type Pods struct {
	YAML   []byte
	Config *config.Config
	// Stack has the private servers; nil where they were given.
	Stack *devstack.Stack
	owned bool
	// Versions names the servers, for people.
	Versions string
}

// ShopsPerPod is how many shops each pod gets.
const ShopsPerPod = 1000

const maxPods = 64

// Start sets the pods up. Close them.
func Start(ctx context.Context, opt Options) (*Pods, error) {
	if opt.Pods == 0 {
		opt.Pods = 1
	}
	if opt.Pods < 1 || opt.Pods > maxPods {
		return nil, fmt.Errorf("%d pods are out of range: use 1 to %d", opt.Pods, maxPods)
	}
	if (opt.MySQL == "") != (opt.Redis == "") {
		return nil, errors.New("name both servers or none: --mysql DSN and --redis URL")
	}
	p := &Pods{Stack: opt.Stack, Versions: "given servers"}
	if opt.MySQL == "" && p.Stack == nil {
		stack, err := devstack.Start(ctx, devstack.Options{MySQL: true, Redis: true, Progress: opt.Progress})
		if err != nil {
			return nil, err
		}
		p.Stack, p.owned = stack, true
	}
	if p.Stack != nil {
		p.Versions = fmt.Sprintf("MySQL %s, Redis %s", p.Stack.MySQL.Version, p.Stack.Redis.Version)
	}
	if err := p.setUp(ctx, opt); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Close stops the private servers and removes their data.
func (p *Pods) Close() error {
	if !p.owned {
		return nil
	}
	return p.Stack.Close()
}

//go:embed twinhold.yaml.tmpl
var configTemplate string

type podData struct {
	ID, Shops, Redis, MySQL string
}

func (p *Pods) setUp(ctx context.Context, opt Options) error {
	data := struct {
		Short, Mirror bool
		Pods          []podData
	}{Short: opt.Short, Mirror: !opt.Legacy}
	for n := 1; n <= opt.Pods; n++ {
		dsn, err := p.schema(ctx, opt, n)
		if err != nil {
			return err
		}
		url := opt.Redis
		if p.Stack != nil {
			url = p.Stack.Redis.URL(0)
		}
		data.Pods = append(data.Pods, podData{
			ID: "pod-" + strconv.Itoa(n), Shops: fmt.Sprintf("%d-%d", (n-1)*ShopsPerPod+1, n*ShopsPerPod),
			Redis: url, MySQL: dsn,
		})
	}
	page, err := template.New("twinhold.yaml").Funcs(template.FuncMap{"quote": quote}).Parse(configTemplate)
	if err != nil {
		return fmt.Errorf("read the configuration's template: %w", err)
	}
	var buf bytes.Buffer
	if err := page.Execute(&buf, data); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	p.YAML = buf.Bytes()
	cfg, err := config.Parse(p.YAML, "the written configuration", func(string) (string, bool) { return "", false })
	if err != nil {
		return err
	}
	p.Config = cfg
	return nil
}

// schema creates a pod's schema and brings it up to date.
func (p *Pods) schema(ctx context.Context, opt Options, n int) (string, error) {
	base := opt.MySQL
	if p.Stack != nil {
		base = p.Stack.MySQL.DSN("")
	}
	c, err := mysql.ParseDSN(base)
	if err != nil {
		return "", fmt.Errorf("MySQL DSN: %w (use user:password@tcp(host:port)/)", err)
	}
	if c.DBName != "" {
		return "", fmt.Errorf("the MySQL DSN names the schema %q, but each pod gets one of its own: leave it out, as in user:password@tcp(host:port)/", c.DBName)
	}
	name := "twinhold_pod_" + strconv.Itoa(n)
	if err := createSchema(ctx, c, name); err != nil {
		return "", err
	}
	c.DBName = name
	if err := mysqlstore.Migrate(ctx, c.FormatDSN()); err != nil {
		return "", fmt.Errorf("create the tables of pod %d: %w", n, err)
	}
	return c.FormatDSN(), nil
}
