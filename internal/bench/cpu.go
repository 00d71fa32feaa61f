package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

// tick is the unit of /proc/PID/stat on Linux, whatever the kernel's own is.
const tick = 10 * time.Millisecond

// ownCPU is the CPU time of this process, its delay line included.
func ownCPU() time.Duration { return usage(syscall.RUSAGE_SELF) }

func usage(who int) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(who, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// childrenCPU is the CPU time of processes that this one has started and waited for.
func childrenCPU() time.Duration { return usage(syscall.RUSAGE_CHILDREN) }

// processCPU is the CPU time of another process of this machine; false where it cannot be known.
func processCPU(pid int) (time.Duration, bool) {
	if pid == 0 {
		return 0, false
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// The name in parentheses may hold anything; utime and stime are fields 14 and 15 of the whole line.
	_, rest, ok := bytes.Cut(b, []byte(") "))
	fields := bytes.Fields(rest)
	if !ok || len(fields) < 13 {
		return 0, false
	}
	var sum time.Duration
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil {
			return 0, false
		}
		sum += time.Duration(n) * tick
	}
	return sum, true
}

// machineCPU is what all processes of this machine have used, and what there was to use; false where that cannot be
// known.
func machineCPU() (used, total time.Duration, ok bool) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, false
	}
	line, _, _ := bytes.Cut(b, []byte("\n"))
	// cpu user nice system idle iowait irq softirq steal guest guest_nice; guests are in user and nice already.
	fields := bytes.Fields(line)
	if len(fields) < 9 || string(fields[0]) != "cpu" {
		return 0, 0, false
	}
	for n, f := range fields[1:9] {
		v, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil {
			return 0, 0, false
		}
		total += time.Duration(v) * tick
		if n != 3 && n != 4 {
			used += time.Duration(v) * tick
		}
	}
	return used, total, total > 0
}

// others measures what part of the machine somebody else uses during a run.
type others struct {
	pids             []int
	used, total, own time.Duration
	ok               bool
}

func newOthers(pids ...int) *others {
	o := &others{pids: pids}
	o.used, o.total, o.own, o.ok = o.read()
	return o
}

// read gives what the whole machine has used, and what of it is ours: this process, those that it has waited for, and
// the servers.
func (o *others) read() (used, total, own time.Duration, ok bool) {
	used, total, ok = machineCPU()
	own = ownCPU() + childrenCPU()
	for _, pid := range o.pids {
		cpu, known := processCPU(pid)
		own, ok = own+cpu, ok && known
	}
	return used, total, own, ok
}

// share is the part of all cores that others have used since; nil where it is not known.
func (o *others) share() *float64 {
	used, total, own, ok := o.read()
	if !ok || !o.ok || total <= o.total {
		return nil
	}
	part := min(max(float64((used-o.used)-(own-o.own))/float64(total-o.total), 0), 1)
	return &part
}
