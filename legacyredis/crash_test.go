package legacyredis_test

const childEnv = "TWINHOLD_CRASH_CHILD"

func child(string) int { return 3 }
