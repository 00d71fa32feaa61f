package devstack

import (
	"os/exec"
	"runtime"
	"sync"
)

// launcher starts a stack's processes from one OS thread that lives as long as
// the stack. Linux sends the parent-death signal when the *thread* that forked
// ends, and the Go runtime may end any thread that is not locked.
type launcher struct {
	jobs chan func()
	wg   sync.WaitGroup
}

func newLauncher() *launcher {
	l := &launcher{jobs: make(chan func())}
	l.wg.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for job := range l.jobs {
			job()
		}
	})
	return l
}

// start starts the command so that it dies with this process.
func (l *launcher) start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = dieWithParent()
	started := make(chan error, 1)
	l.jobs <- func() { started <- cmd.Start() }
	return <-started
}

// close ends the thread. Only after the last process has been waited for.
func (l *launcher) close() {
	close(l.jobs)
	l.wg.Wait()
}
