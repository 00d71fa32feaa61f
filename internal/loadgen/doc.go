// Package loadgen turns recorded orders, or a seed, into reservation traffic, and sends it.
//
// Three steps, each usable alone: Read parses a file of orders (CSV) or of requests (JSON lines) strictly, with
// file and line in every error; NewPlan lays out what is sent, in which order, over which stock; Run sends a plan
// to a Target and writes down every answer. Mixed makes a plan from a seed.
//
// It promises that the same input gives the same plan: nothing here is random, shares are drawn by hashing the
// invoice and its copy. It never talks to a store by itself, and never calls an unanswered request failed: it is
// retried with its key, and unknown if that does not settle it.
package loadgen
