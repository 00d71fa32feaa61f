//go:build unix && !linux

package fleet

import "syscall"

// dieWithParent has no counterpart to Linux's parent-death signal here.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
