package config

import (
	"fmt"
	"slices"
	"strings"
)

// check holds the rules that go across keys. A value that was a mistake already has its default (or its zero),
// so that it does not breed a second one.
func (r *reader) check(c *Config) {
	if _, given := r.at["version"]; !given {
		r.mistake(place{1, 1}, "version", "is missing: write version: 1")
	}
	if c.Data.Listen == c.Admin.Listen && !strings.HasSuffix(c.Data.Listen, ":0") { // 0: any free port
		r.mistake(r.placeOf("admin.listen", "data.listen"), "admin.listen",
			"%s is the data listener's address too: give each its own", c.Data.Listen)
	}
	r.checkTLS("data", c.Data.TLS)
	r.checkTLS("admin", c.Admin.TLS)
	r.checkTokens(c.Admin)
	r.checkTimes(c)
	if len(c.Pods) == 0 && !r.has("pods") {
		r.mistake(r.placeOf("pods"), "pods", "there is no pod: add one with id, shops, redis and mysql")
	}
	for i := range c.Pods {
		r.checkPod(i, &c.Pods[i])
	}
	r.checkUnique(c.Pods)
	r.checkOverlaps(c.Pods)
}

// has tells whether a mistake was already found at one of these paths.
func (r *reader) has(paths ...string) bool {
	return slices.ContainsFunc(r.mistakes, func(m Mistake) bool { return slices.Contains(paths, m.Path) })
}

// checkTimes holds the durations to each other. Where one of them was a mistake there is nothing to compare.
func (r *reader) checkTimes(c *Config) {
	if r.has(
		"payment", "payment.timeout", "payment.callback_window", "payment.clock_skew",
		"defaults.ttl", "defaults.max_ttl", "defaults.retention",
	) {
		return
	}
	d, p, sum := c.Defaults, c.Payment, c.Payment.Sum()
	sumShown := fmt.Sprintf("payment timeout %s + callback_window %s + clock_skew %s = %s",
		show(p.Timeout), show(p.CallbackWindow), show(p.ClockSkew), show(sum))
	if d.TTL <= sum {
		r.mistake(r.placeOf("defaults.ttl", "payment", "defaults"), "defaults.ttl",
			"%s is at or below %s: a hold would end before its payment can; use more than %s", show(d.TTL), sumShown, show(sum))
	}
	if d.MaxTTL < d.TTL {
		r.mistake(r.placeOf("defaults.max_ttl", "defaults.ttl"), "defaults.max_ttl",
			"%s is below ttl %s: use %s or more", show(d.MaxTTL), show(d.TTL), show(d.TTL))
	} else if need := d.MaxTTL + sum; d.Retention < need {
		r.mistake(r.placeOf("defaults.retention", "defaults.max_ttl", "payment", "defaults"), "defaults.retention",
			"%s does not cover max_ttl %s and %s: use %s or more", show(d.Retention), show(d.MaxTTL), sumShown, show(need))
	}
	if t := c.Tuning; t.MySQL.TransactionLimit > t.MySQL.Deadline {
		r.mistake(r.placeOf("tuning.mysql.transaction_limit", "tuning.mysql.deadline"), "tuning.mysql.transaction_limit",
			"%s is above the deadline %s of the whole operation: use %s at most", show(t.MySQL.TransactionLimit), show(t.MySQL.Deadline), show(t.MySQL.Deadline))
	}
	r.checkShares(c.Tuning.MySQL)
}

// checkShares sees to it that the truth has connections that no other class may hold.
func (r *reader) checkShares(t MySQLTuning) {
	const least = 4 // of fewer, none can be left to the truth alone
	mirror, refill, background := t.Shares()
	if sum := mirror + refill + background; t.Connections >= least && sum >= t.Connections {
		const path = "tuning.mysql."
		r.mistake(r.placeOf(path+"mirror_connections", path+"refill_connections", path+"background_connections", path+"connections"), path+"connections",
			"the mirror may hold %d of %d connections, refills %d and the background %d: leave some to the truth", mirror, t.Connections, refill, background)
	}
	for _, n := range []int{mirror, refill, background} {
		if n > t.Connections {
			const path = "tuning.mysql.connections"
			r.mistake(r.placeOf(path, "tuning.mysql"), path, "is %d, and %d of them are set apart: use more connections, or fewer for that", t.Connections, n)
			return
		}
	}
}

func podPath(i int) string { return fmt.Sprintf("pods[%d]", i) }

func (r *reader) checkPod(i int, p *Pod) {
	path := podPath(i)
	if r.has(path) && p.ID == "" && len(p.Shops) == 0 {
		return // it is no mapping at all, which has been said
	}
	at := r.placeOf(path)
	if !r.given(path, "id") {
		r.mistake(at, path, "has no id: add one, as in id: pod-1")
	}
	if len(p.Shops) == 0 && !r.has(path+".shops") {
		r.mistake(r.placeOf(path+".shops", path), path, `serves no shop: add some, as in shops: ["1-999", "1500"]`)
	}
	r.checkSource(path, "redis", redisForm(), true)
	r.checkSource(path, "mysql", mysqlForm(), true)
	r.checkSource(path, "mysql_replica", mysqlForm(), false)
	if st := p.DeclaredStage(); st > p.MaxStage && !r.has(path+".max_stage", path+".source_of_truth", path+".mirror") {
		r.mistake(r.placeOf(path+".max_stage", path+".source_of_truth", path+".mirror", path), path+".max_stage",
			"source_of_truth %s and mirror %v declare the stage %s, which is beyond max_stage %s: raise it, or declare less",
			p.SourceOfTruth, p.Mirror, st, p.MaxStage)
	}
}

func (r *reader) given(path, key string) bool {
	_, ok := r.at[path+"."+key]
	return ok
}

// checkSource wants an address in the file or in a file of its own, not in both.
func (r *reader) checkSource(path, key string, f form, required bool) {
	plain, file := r.given(path, key), r.given(path, key+"_file")
	switch {
	case plain && file:
		r.mistake(r.placeOf(path+"."+key+"_file"), path+"."+key+"_file", "%s is given too: keep one of the two", key)
	case required && !plain && !file:
		r.mistake(r.placeOf(path), path, "has no %s: add %s: %s, or %s_file", key, key, f.want, key)
	}
}

// checkUnique finds ids and schemas that two pods share. Two pods in one Redis are fine: their hash tags differ.
func (r *reader) checkUnique(pods []Pod) {
	ids, schemas := make(map[string]int), make(map[string]int)
	for i, p := range pods {
		path := podPath(i)
		if first, twice := ids[p.ID]; twice && p.ID != "" {
			r.mistake(r.placeOf(path+".id"), path+".id", "%s is the id of %s too (line %d): give each pod its own",
				p.ID, podPath(first), r.placeOf(podPath(first)+".id").line)
		} else {
			ids[p.ID] = i
		}
		schema := schemaOf(p.MySQL)
		if schema == "" {
			continue
		}
		if first, twice := schemas[schema]; twice {
			other := podPath(first)
			r.mistake(r.placeOf(path+".mysql", path+".mysql_file"), path+".mysql", "%s is the schema of %s too (line %d): give each pod its own",
				schema, other, r.placeOf(other+".mysql", other+".mysql_file").line)
		} else {
			schemas[schema] = i
		}
	}
}

// checkOverlaps names both places of every range that reaches into an earlier one.
func (r *reader) checkOverlaps(pods []Pod) {
	var widest ownedRange
	for i, o := range sortRanges(pods) {
		if i > 0 && o.First <= widest.Last {
			r.overlap(pods, widest, o)
		}
		if i == 0 || o.Last > widest.Last {
			widest = o
		}
	}
}

func (r *reader) overlap(pods []Pod, a, b ownedRange) {
	// The later one in the file is the mistake; the earlier one is what it meets.
	if a.pod > b.pod || a.pod == b.pod && a.index > b.index {
		a, b = b, a
	}
	pathA, pathB := fmt.Sprintf("pods[%d].shops[%d]", a.pod, a.index), fmt.Sprintf("pods[%d].shops[%d]", b.pod, b.index)
	first := r.placeOf(pathA)
	owner := pods[a.pod].ID
	if owner == "" {
		owner = podPath(a.pod)
	}
	r.mistake(r.placeOf(pathB), pathB, "shops %s overlap shops %s of pod %s (%d:%d): a shop lives in one pod",
		b.ShopRange, a.ShopRange, owner, first.line, first.column)
}
