// Package diff compares what the two stores said of the same operation and explains where they differ.
//
// One Span accompanies an operation from the router's door to the mirror's answer and ends either compared or as a
// gap, never both and never neither (I11). An unequal pair is judged again once it has settled, and is explained as
// a race only by evidence: each store decided rightly by the availability that it saw, the difference between the
// two availabilities is exactly what the operations that overlapped can account for, and both agree afterwards.
// Whatever cannot be explained counts against the pod.
//
// It never changes a reservation, and it never delays an answer.
package diff
