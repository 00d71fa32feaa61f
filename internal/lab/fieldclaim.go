package lab

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// Step 8 has 10 units; a paid cart of 4 is being claimed when the process dies.
const (
	fieldStock, fieldCart = 10, 4
	// there is what lies in the warehouse once the paid cart has been sent.
	there = fieldStock - fieldCart
)

// fieldKeyLife bounds the life of the step's keys, should the process itself be killed.
const fieldKeyLife = 10 * time.Minute

// field is the system as it was found: a counter and a hash in Redis, a ledger in MySQL, one bucket.
type field struct {
	s   *scratch
	acc *account
}

func (f field) avail() string { return f.s.prefix + "avail" }
func (f field) hold() string  { return f.s.prefix + "res:r1" }

// fieldClaim is step 8. To die is to leave out the second step, which is what a kill -9 leaves behind (a test of
// legacyredis kills a process for it). Three endings of one crash, then the same with an entry in the ledger's journal.
func fieldClaim(ctx context.Context, s *scratch, acc *account) (err error) {
	f := field{s, acc}
	defer func() {
		tidy, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTimeout)
		defer cancel()
		err = errors.Join(err, s.redis.Del(tidy, f.avail(), f.hold()).Err())
	}()
	for _, ending := range []func(context.Context) error{f.expires, f.retried, f.reversed, f.journalled} {
		if err := f.setUp(ctx); err != nil {
			return err
		}
		if err := ending(ctx); err != nil {
			return err
		}
	}
	return nil
}

// setUp stocks the bucket, and holds the cart.
func (f field) setUp(ctx context.Context) error {
	if err := f.s.setUp(ctx, qDropLedger, qCreateLedger, qDropEntries, qCreateEntries); err != nil {
		return err
	}
	if err := f.s.fill(ctx, qFillLedger, fieldStock); err != nil {
		return err
	}
	pipe := f.s.redis.TxPipeline()
	pipe.Set(ctx, f.avail(), fieldStock, fieldKeyLife)
	pipe.DecrBy(ctx, f.avail(), fieldCart)
	pipe.HSet(ctx, f.hold(), "quantity", fieldCart)
	pipe.Expire(ctx, f.hold(), fieldKeyLife)
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("hold the cart in Redis: %w", err)
	}
	return nil
}

// expires: deducted, killed, and the hold runs out. Its units are sold once more.
func (f field) expires(ctx context.Context) error {
	f.acc.say("deduct the ledger, then clear the hold:")
	f.acc.say("   a cart of %d is held: available %d in Redis, on hand %d in MySQL; it is paid", fieldCart, fieldStock-fieldCart, fieldStock)
	if err := f.deduct(ctx); err != nil {
		return err
	}
	f.dies("the hold is still there; later it expires")
	if err := f.expire(ctx); err != nil {
		return err
	}
	onHand, available, err := f.figures(ctx)
	if err != nil {
		return err
	}
	f.acc.say("   OVERSELL: Redis sells %d, and %d are there", available, onHand)
	f.acc.expect("expired_available", available, fieldStock)
	f.acc.expect("expired_on_hand", onHand, there)
	f.acc.expect("oversell", available-onHand, fieldCart)
	return nil
}

// retried: deducted, killed, and the payment's callback comes again before the hold runs out.
func (f field) retried(ctx context.Context) error {
	f.acc.say("the same, and the callback is faster than the expiry:")
	if err := f.deduct(ctx); err != nil {
		return err
	}
	f.dies("the payment's callback comes again and finds a hold")
	if err := errors.Join(f.deduct(ctx), f.clear(ctx)); err != nil {
		return err
	}
	onHand, _, err := f.figures(ctx)
	if err != nil {
		return err
	}
	f.acc.say("   UNDERSELL: the ledger says %d, and %d are there: deducted twice", onHand, there)
	f.acc.expect("retried_on_hand", onHand, there-fieldCart)
	f.acc.expect("undersell", there-onHand, fieldCart)
	return nil
}

// reversed: the other order of the two steps. The callback finds no hold, so the money goes back and the goods stay,
// but nothing ever gives them back to the counter.
func (f field) reversed(ctx context.Context) error {
	f.acc.say("the other order, clear the hold, then deduct:")
	if err := f.clear(ctx); err != nil {
		return err
	}
	f.dies("the payment's callback comes again and finds no hold: refund")
	if err := f.expire(ctx); err != nil {
		return err
	}
	onHand, available, err := f.figures(ctx)
	if err != nil {
		return err
	}
	f.acc.say("   UNDERSELL: Redis sells %d, and %d are there", available, onHand)
	f.acc.expect("reversed_available", available, there)
	f.acc.expect("reversed_on_hand", onHand, fieldStock)
	f.acc.expect("reversed_undersell", onHand-available, fieldCart)
	return nil
}

// journalled: an entry whose key has the reservation's id makes two deductions one.
func (f field) journalled(ctx context.Context) error {
	f.acc.say("the remedy in the ledger: the entry first, in the deduction's transaction, twice:")
	for range 2 {
		if err := f.deductOnce(ctx); err != nil {
			return err
		}
	}
	onHand, _, err := f.figures(ctx)
	if err != nil {
		return err
	}
	f.acc.expect("with_entry_on_hand", onHand, there)
	return nil
}

func (f field) dies(then string) { f.acc.say("   the process dies here; %s", then) }

func (f field) deduct(ctx context.Context) error {
	f.acc.say("MySQL> %s", short(qDeduct, fieldCart, fieldCart))
	return f.s.fill(ctx, qDeduct, fieldCart, fieldCart)
}

// deductOnce is the deduction with its entry, in one transaction.
func (f field) deductOnce(ctx context.Context) error {
	tx, err := f.s.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("deduct: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	f.acc.say("MySQL> BEGIN; %s; UPDATE ledger ...; COMMIT", short(qEnter, "'r1'", fieldCart))
	_, err = tx.ExecContext(ctx, qEnter, "r1", fieldCart)
	if n, other := number(err); other != nil || n != 0 && n != errTwice {
		return fmt.Errorf("deduct: %w", err)
	} else if n == errTwice {
		f.acc.say("   %v: deducted before, so nothing is done", err)
		f.acc.expect("second_entry_errno", n, errTwice)
		return nil
	}
	if _, err := tx.ExecContext(ctx, qDeduct, fieldCart, fieldCart); err != nil {
		return fmt.Errorf("deduct: %w", err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("deduct: %w", err)
	}
	return nil
}

func (f field) clear(ctx context.Context) error {
	f.acc.say("Redis> DEL res:r1")
	if err := f.s.redis.Del(ctx, f.hold()).Err(); err != nil {
		return fmt.Errorf("clear the hold: %w", err)
	}
	return nil
}

// expire is what ends every hold that nobody cleared.
func (f field) expire(ctx context.Context) error {
	quantity, err := f.s.redis.HGet(ctx, f.hold(), "quantity").Int64()
	if errors.Is(err, redis.Nil) {
		f.acc.say("Redis> HGET res:r1: nothing to expire")
		return nil
	}
	if err == nil {
		f.acc.say("Redis> DEL res:r1; INCRBY avail %d", quantity)
		pipe := f.s.redis.TxPipeline()
		pipe.Del(ctx, f.hold())
		pipe.IncrBy(ctx, f.avail(), quantity)
		_, err = pipe.Exec(ctx)
	}
	if err != nil {
		return fmt.Errorf("expire the hold: %w", err)
	}
	return nil
}

func (f field) figures(ctx context.Context) (onHand, available int64, err error) {
	if onHand, err = f.s.number(ctx, qOnHand); err != nil {
		return 0, 0, err
	}
	if available, err = f.s.redis.Get(ctx, f.avail()).Int64(); err != nil {
		return 0, 0, fmt.Errorf("look at the counter: %w", err)
	}
	f.acc.say("   on hand %d, available %d", onHand, available)
	return onHand, available, nil
}
