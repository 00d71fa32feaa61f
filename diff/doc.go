// Package diff compares what the two stores said of the same operation and explains where they differ.
//
// One Span accompanies an operation from the router's door to the mirror's answer and ends either compared or as a
// gap, never both and never neither (I11). An unequal pair is judged again once it has settled, and is explained as
// a race only by evidence: each store decided rightly by the availability that it saw, the difference between the
// two availabilities is exactly what the operations that overlapped can account for, and both agree afterwards.
// Whatever cannot be explained counts against the pod.
//
// One Engine lives as long as its router and sees its pod move through the stages: the truth of an operation is that of
// its last decision's stage, and effects are noted by store. What other routers of the pod did it reads from the stores
// as far as they tell; what they do not tell is counted as unseen, apart, and only while there are others.
//
// It never changes a reservation, and it never delays an answer.
package diff
