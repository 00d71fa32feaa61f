//go:build !race

package fleet

// raceOn: the tests run with the race detector, and so do the routers.
const raceOn = false
