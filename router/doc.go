// Package router is the one door to a pod: it finds the pod of a shop, asks the store that decides, answers, and
// sees to it that the other store hears of it and that the two outcomes are compared.
//
// It promises that the answer a caller gets is the truth's, that the mirror never delays or fails a reserve or a
// release in shadow (I10), and that every validated operation is accounted for (I11). It never answers from the
// store that is not the truth. Who decides is read from the stage table of package reservation and nowhere else.
package router
