//go:build unix && !linux

package devstack

import "syscall"

// dieWithParent has no counterpart to Linux's parent-death signal here: after a
// SIGKILL of this process its servers have to be ended by hand.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
