// Package killswitch moves one pod between its stages, and back at once.
//
// Kill sends a pod back to Redis. It needs the pod's Redis and nothing else, asks nobody, and may be repeated. Flip
// moves a pod forward, one step at a time, through gates that say pass, fail or inconclusive with the figure. Rearm is
// the careful way out of a kill, Freeze the brake for the night on which Redis is in doubt too, Drill a kill on purpose.
//
// Every step is derived from the two fences as they are, so whatever was killed half-way is finished by running it
// again. Every change is one audit record, written by the store that it changes, in the same atomic step.
//
// It never moves a pod towards MySQL by itself, never changes a store but through its fence, and never waits for MySQL
// before a kill stands.
package killswitch
