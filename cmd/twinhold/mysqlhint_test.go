package main

import (
	"os"
	"strings"
	"testing"
)

// What a server refuses is exit 2 in each command that makes a schema of its own, and what is broken exit 1, each with
// what mends it.
func TestAServerThatLetsNoSchemaBeMade(t *testing.T) {
	c, stack := newClient(t)
	hand(t, stack, "CREATE USER reader")
	yaml, err := os.ReadFile(c.config)
	if err != nil {
		t.Fatal(err)
	}
	as := func(user string) *client {
		return &client{t, configFile(t, strings.ReplaceAll(string(yaml), "root@", user+"@"))}
	}
	commands := map[string][]string{"bench": {"bench", "pool", "--seconds", "0.2", "--runs", "1"}, "lab": {"lab", "--step", "1"}}
	for name, args := range commands {
		t.Run(name+" denied", func(t *testing.T) {
			c := as("reader")
			c.t = t
			if name == "lab" {
				hand(t, stack, "GRANT SELECT ON performance_schema.* TO reader")
			}
			c.fails(exitRefused, "needs GRANT ALL ON `twinhold\\_"+name+"\\_%`.*", args...)
		})
		t.Run(name+" by somebody unknown", func(t *testing.T) {
			c := as("somebody")
			c.t = t
			c.fails(exitFailed, "are the pod's MySQL user and password right", args...)
		})
	}
	hand(t, stack, "SET GLOBAL super_read_only = ON")
	for _, args := range commands {
		c.fails(exitRefused, "takes no writes", args...)
	}
	if err := stack.MySQL.Kill(); err != nil {
		t.Fatal(err)
	}
	c.fails(exitFailed, "is the pod's MySQL running", commands["bench"]...)
	c.fails(exitFailed, "twinhold doctor", commands["lab"]...)
}
