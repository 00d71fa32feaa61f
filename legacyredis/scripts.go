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
	reserve, pin, finish, release, due, sweep, postpone, adjustPin, adjustFinish, ledger          script
	fenceInit, fenceCheck, fenceRead, beat, leave, routers, move, kill, rearm, freeze, touch      script
	confirm, turnDown, mirror, restoreBegin, restoreWipe, restoreHeld, restoreEnd, restoreAbandon script
}

func loadScript(name string) (script, error) {
	prelude, err := luaFiles.ReadFile("lua/prelude.lua")
	if err != nil {
		return script{}, fmt.Errorf("legacyredis: %w", err)
	}
	body, err := luaFiles.ReadFile("lua/" + name + ".lua")
	if err != nil {
		return script{}, fmt.Errorf("legacyredis: %w", err)
	}
	return script{name: name, lua: redis.NewScript(string(prelude) + "\n" + string(body))}, nil
}

func loadScripts() (scripts, error) {
	var s scripts
	for name, to := range map[string]*script{
		"reserve": &s.reserve, "pin": &s.pin, "finish": &s.finish, "release": &s.release, "due": &s.due,
		"sweep": &s.sweep, "postpone": &s.postpone, "adjust_pin": &s.adjustPin, "adjust_finish": &s.adjustFinish,
		"ledger": &s.ledger, "fence_init": &s.fenceInit, "fence_check": &s.fenceCheck, "fence_read": &s.fenceRead,
		"beat": &s.beat, "leave": &s.leave, "routers": &s.routers, "move": &s.move, "kill": &s.kill,
		"rearm": &s.rearm, "freeze": &s.freeze, "touch": &s.touch,
		"confirm": &s.confirm, "turn_down": &s.turnDown, "mirror": &s.mirror, "restore_begin": &s.restoreBegin,
		"restore_wipe": &s.restoreWipe, "restore_held": &s.restoreHeld, "restore_end": &s.restoreEnd,
		"restore_abandon": &s.restoreAbandon,
	} {
		var err error
		if *to, err = loadScript(name); err != nil {
			return s, err
		}
	}
	return s, nil
}
