package devstack

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// EnvDir is the environment variable that names the dev folder.
const EnvDir = "TWINHOLD_DEV_DIR"

const modulePath = "github.com/twinhold/twinhold"

// devDir finds the dev folder and creates it.
func devDir(given string) (string, error) {
	dir := given
	if dir == "" {
		dir = os.Getenv(EnvDir)
	}
	if dir == "" {
		wd, err := os.Getwd()
		if err != nil {
			return "", fmt.Errorf("devstack: %w", err)
		}
		dir = filepath.Join(projectRoot(wd), ".dev")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("devstack: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", &Error{"making the dev folder", err, "set " + EnvDir + " to a folder that you may write to"}
	}
	return dir, nil
}

// projectRoot is the module at or above the working directory, else the one that this program was built in (its
// bin folder), else the working directory: whoever calls bin/twinhold from elsewhere fetches nothing twice.
func projectRoot(wd string) string {
	if root := ModuleRoot(wd); isModuleRoot(root) {
		return root
	}
	if exe, err := os.Executable(); err == nil {
		if root := ModuleRoot(filepath.Dir(exe)); isModuleRoot(root) {
			return root
		}
	}
	return wd
}

// ModuleRoot is the nearest folder at or above dir that holds this module's
// go.mod, else dir itself.
func ModuleRoot(dir string) string {
	for d := dir; ; d = filepath.Dir(d) {
		if isModuleRoot(d) {
			return d
		}
		if d == filepath.Dir(d) {
			return dir
		}
	}
}

func isModuleRoot(dir string) bool {
	f, err := os.Open(filepath.Join(dir, "go.mod"))
	if err != nil {
		return false
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if name, ok := strings.CutPrefix(sc.Text(), "module "); ok {
			return strings.TrimSpace(name) == modulePath
		}
	}
	return false
}

// fileLock is an advisory lock that the kernel drops when the process ends,
// whatever ends it.
type fileLock struct{ f *os.File }

var errLocked = errors.New("locked by another process")

// tryLock takes the lock or returns errLocked.
func tryLock(path string) (*fileLock, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("devstack: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, fmt.Errorf("devstack: lock %s: %w", path, err)
	}
	return &fileLock{f}, nil
}

// lock waits for the lock until the context ends.
func lock(ctx context.Context, path string) (*fileLock, error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		l, err := tryLock(path)
		if !errors.Is(err, errLocked) {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("devstack: waiting for %s: %w", path, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

func (l *fileLock) unlock() { l.f.Close() }

// runFolder is a stack's own folder. Its lock file is held as long as the stack
// lives, so that a folder whose lock is free has lost its owner.
type runFolder struct {
	path string
	held *fileLock
}

// newRunFolder makes a run folder and removes those that a killed process has
// left behind.
func newRunFolder(ctx context.Context, dev string) (*runFolder, error) {
	base := filepath.Join(dev, "run")
	if err := os.MkdirAll(base, 0o755); err != nil {
		return nil, fmt.Errorf("devstack: %w", err)
	}
	// A folder and its lock appear together for everyone who holds the guard.
	guard, err := lock(ctx, filepath.Join(dev, "run.lock"))
	if err != nil {
		return nil, err
	}
	defer guard.unlock()
	if err := removeStale(base); err != nil {
		return nil, err
	}
	path, err := os.MkdirTemp(base, "")
	if err != nil {
		return nil, fmt.Errorf("devstack: %w", err)
	}
	held, err := tryLock(filepath.Join(path, "lock"))
	if err != nil {
		return nil, err
	}
	return &runFolder{path: path, held: held}, nil
}

func removeStale(base string) error {
	entries, err := os.ReadDir(base)
	if err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	for _, e := range entries {
		dir := filepath.Join(base, e.Name())
		l, err := tryLock(filepath.Join(dir, "lock"))
		if errors.Is(err, errLocked) || errors.Is(err, os.ErrNotExist) {
			continue // alive, or removed by its owner just now
		}
		if err != nil {
			return err
		}
		err = removeAll(dir)
		l.unlock()
		if err != nil {
			return fmt.Errorf("devstack: removing a stale run folder: %w", err)
		}
	}
	return nil
}

func (r *runFolder) remove() error {
	defer r.held.unlock()
	if err := removeAll(r.path); err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	return nil
}

// removeAll removes a folder in which a child of a server that is gone may write for a moment still: a Redis that had to be
// killed leaves one that saves its data.
func removeAll(dir string) (err error) {
	for range 40 {
		if err = os.RemoveAll(dir); !errors.Is(err, syscall.ENOTEMPTY) {
			return err
		}
		wait(context.Background(), 50*time.Millisecond)
	}
	return err
}
