package legacyredis

import (
	"embed"
	"fmt"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/*.lua
var luaFiles embed.FS

// script is one loaded file of lua/, with the prelude in front of it.
type script struct {
	name string
	lua  *redis.Script
}

// scripts holds one script an operation.
type scripts struct {
	reserve, pin, finish, release, due, sweep, postpone, adjustPin, adjustFinish, ledger, fenceInit, fenceCheck script
}

func loadScripts() (scripts, error) {
	var s scripts
	prelude, err := luaFiles.ReadFile("lua/prelude.lua")
	if err != nil {
		return s, fmt.Errorf("legacyredis: %w", err)
	}
	for name, to := range map[string]*script{
		"reserve": &s.reserve, "pin": &s.pin, "finish": &s.finish, "release": &s.release, "due": &s.due,
		"sweep": &s.sweep, "postpone": &s.postpone, "adjust_pin": &s.adjustPin, "adjust_finish": &s.adjustFinish,
		"ledger": &s.ledger, "fence_init": &s.fenceInit, "fence_check": &s.fenceCheck,
	} {
		body, err := luaFiles.ReadFile("lua/" + name + ".lua")
		if err != nil {
			return s, fmt.Errorf("legacyredis: %w", err)
		}
		*to = script{name: name, lua: redis.NewScript(string(prelude) + "\n" + string(body))}
	}
	return s, nil
}
