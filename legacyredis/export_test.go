package legacyredis

// ScriptText is a script as it is sent to Redis.
func ScriptText(name string) (string, error) {
	return scriptText(name)
}
