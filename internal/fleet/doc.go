// Package fleet holds the black-box tests of the whole product: real twinhold processes beside a private MySQL and
// Redis, buyers over HTTP, and an operator who flips, kills and rearms by the commands, while routers are stopped,
// killed and cut off.
//
// It promises that the verdict comes from what buyers were answered, with begin and end of every call, and from what
// both stores hold at rest, never from what the product says of itself; that a violation is shown with the whole story
// of its reservation; and that no process is left behind. It has no code of its own outside its tests.
//
// The short forms run with every test, the long ones with TWINHOLD_SOAK=1. TWINHOLD_SEED=N repeats a plan. The routers'
// logs are kept with go test -artifacts.
package fleet
