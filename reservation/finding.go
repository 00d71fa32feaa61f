package reservation

import "fmt"

// Severity says how much a finding matters.
type Severity uint8

// The severities.
const (
	// Fine: as it should be.
	Fine Severity = iota + 1
	// Warning: it works, and somebody should look.
	Warning
	// Failure: a store's promises do not hold on this server.
	Failure
)

// String gives the severity as doctor prints it.
func (s Severity) String() string {
	switch s {
	case Fine:
		return "ok"
	case Warning:
		return "warning"
	case Failure:
		return "failure"
	default:
		return fmt.Sprintf("severity(%d)", uint8(s))
	}
}

// Finding is one thing that a store needs of its server, and what was found.
type Finding struct {
	// Check names it: version, clock, fence, and so on.
	Check    string
	Severity Severity
	// Found is what the server says, Fix how to mend it where that is not well.
	Found, Fix string
}

// Judge makes a finding that is well, or has this severity and fix.
func Judge(check string, well bool, otherwise Severity, found, fix string) Finding {
	if well {
		return Finding{Check: check, Severity: Fine, Found: found}
	}
	return Finding{Check: check, Severity: otherwise, Found: found, Fix: fix}
}
