// Package config reads twinhold.yaml: which pods there are, where their stores are, and how they are tuned.
//
// It promises that a *Config it returns is whole and consistent: every key known, every value in range, every TTL
// above what a payment can take, no shop in two pods, no schema under two pods. A file with mistakes gives all of
// them at once, each with line, column and what to write instead, and no configuration at all. It never connects
// to anything, never prints a secret, and never lets a stage of a pod that has a fence be changed by a file: what
// is declared here counts only for a pod that has none yet.
package config
