package fleet

import "syscall"

// dieWithParent also takes the process out of the terminal's foreground group.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
