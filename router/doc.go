// Package router is the one door to a pod: it finds the pod of a shop, asks the store that decides, answers, and
// sees to it that the other store hears of it and that the two outcomes are compared.
//
// A router believes an epoch and a stage, and sends them with every write. Both stores refuse a belief that is old, so
// nobody has to be told in time of a change: the router that is refused reads the fence and carries the operation out
// again, under the same id and key, in the stage that holds now.
//
// It promises that the answer a caller gets is the truth's, that the mirror never delays or fails a reserve or a
// release in shadow (I10, but for the bounded look-up of marks after a kill), that a router which cannot reach Redis
// answers only where MySQL decides, and marks what it answers, and that every validated operation is accounted for
// (I11). It never answers from the store that is not the truth: what is found there is first written into the truth.
// Who decides is read from the stage table of package reservation and nowhere else.
package router
