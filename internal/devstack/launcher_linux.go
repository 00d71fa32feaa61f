package devstack

import "syscall"

// dieWithParent also takes the process out of the terminal's foreground group:
// Ctrl-C is for us, and we end our servers.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
