package legacyredis

import (
	"embed"
	"fmt"
	"strings"

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
	mend, mendBucket                                                                              script
}

func loadScript(name string, cluster bool) (script, error) {
	text, err := scriptText(name, cluster)
	return script{name: name, lua: redis.NewScript(text)}, err
}

// scriptText puts a script together: the prelude, what it needs of the rest, its own text.
func scriptText(name string, cluster bool) (string, error) {
	files := []string{"prelude"}
	if cluster {
		files = append(files, "cluster")
	}
	switch name {
	case "finish", "adjust_finish", "ledger", "mirror":
		files = append(files, "versions")
	}
	files = append(files, name)
	var text strings.Builder
	for _, f := range files {
		body, err := luaFiles.ReadFile("lua/" + f + ".lua")
		if err != nil {
			return "", fmt.Errorf("legacyredis: %w", err)
		}
		text.Write(body)
		text.WriteByte('\n')
	}
	return text.String(), nil
}

func loadScripts(cluster bool) (scripts, error) {
	var s scripts
	for name, to := range map[string]*script{
		"reserve": &s.reserve, "pin": &s.pin, "finish": &s.finish, "release": &s.release, "due": &s.due,
		"sweep": &s.sweep, "postpone": &s.postpone, "adjust_pin": &s.adjustPin, "adjust_finish": &s.adjustFinish,
		"ledger": &s.ledger, "fence_init": &s.fenceInit, "fence_check": &s.fenceCheck, "fence_read": &s.fenceRead,
		"beat": &s.beat, "leave": &s.leave, "routers": &s.routers, "move": &s.move, "kill": &s.kill,
		"rearm": &s.rearm, "freeze": &s.freeze, "touch": &s.touch,
		"confirm": &s.confirm, "turn_down": &s.turnDown, "mirror": &s.mirror, "restore_begin": &s.restoreBegin,
		"restore_wipe": &s.restoreWipe, "restore_held": &s.restoreHeld, "restore_end": &s.restoreEnd,
		"restore_abandon": &s.restoreAbandon, "mend": &s.mend, "mend_bucket": &s.mendBucket,
	} {
		var err error
		if *to, err = loadScript(name, cluster); err != nil {
			return s, err
		}
	}
	return s, nil
}
