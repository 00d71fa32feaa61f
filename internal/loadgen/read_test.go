package loadgen_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/twinhold/twinhold/internal/loadgen"
	"github.com/twinhold/twinhold/reservation"
)

const header = "InvoiceNo,StockCode,Quantity,InvoiceDate,Country\n"

func read(t *testing.T, text string) loadgen.Recording {
	t.Helper()
	rec, err := loadgen.Read("f", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// What a spreadsheet makes of a file does not change what it says.
func TestCSVDialects(t *testing.T) {
	plain := header + "1,10001,2,2011-12-05 08:38:00,United Kingdom\n1,10002b,3,2011-12-05 08:38:00,EIRE\n2,10001,4,2011-12-05 09:00:00,EIRE\n"
	want := read(t, plain)
	for name, text := range map[string]string{
		"CRLF":              strings.ReplaceAll(plain, "\n", "\r\n"),
		"BOM":               "\xef\xbb\xbf" + plain,
		"quoted":            strings.ReplaceAll(strings.ReplaceAll(plain, "EIRE", `"EIRE"`), "10002b", `"10002b"`),
		"no final newline":  strings.TrimSuffix(plain, "\n"),
		"no seconds":        strings.ReplaceAll(plain, ":00,", ","),
		"other columns too": "Country,Description,StockCode,InvoiceNo,UnitPrice,Quantity,InvoiceDate\nUnited Kingdom,\"a, \"\"b\"\"\",10001,1,2.5,2,2011-12-05 08:38:00\nEIRE,,10002b,1,0,3,2011-12-05 08:38:00\nEIRE,x,10001,2,1,4,2011-12-05 09:00:00\n",
	} {
		if diff := cmp.Diff(want, read(t, text)); diff != "" {
			t.Errorf("%s reads otherwise (-plain +this):\n%s", name, diff)
		}
	}
	blank := read(t, strings.ReplaceAll(plain, "\n", "\n\n"))
	if blank.Rows != 3 || len(blank.Invoices) != 2 || blank.Invoices[1].Line != 7 {
		t.Errorf("with blank lines: %+v", blank)
	}
	if got := want.Invoices[0]; got.At != time.Date(2011, 12, 5, 8, 38, 0, 0, time.UTC) || got.Goods[1].Code != "10002b" || got.Goods[1].Quantity != 3 {
		t.Errorf("%+v", got)
	}
}

func TestGoodsAreToldFromTheRest(t *testing.T) {
	for code, want := range map[string]bool{
		"85123A": true, "22423": true, "15056bl": true, "79323GR": true, "90214": true, "1234567": true,
		"POST": false, "M": false, "m": false, "DOT": false, "C2": false, "D": false, "S": false, "B": false, "PADS": false,
		"BANK CHARGES": false, "AMAZONFEE": false, "CRUK": false, "gift_0001_20": false, "DCGS0076": false, "2242": false, "": false, "１２３４５": false,
	} {
		if loadgen.IsGood(code) != want {
			t.Errorf("IsGood(%q) = %v", code, !want)
		}
	}
}

func TestReadRefusals(t *testing.T) {
	row := func(s string) string { return header + "1,10001,1,2011-12-05 08:38:00,EIRE\n" + s + "\n" }
	for name, tc := range map[string]struct{ text, want string }{
		"empty":                     {"", "f:1: the file is empty"},
		"white space":               {" \n\n", "f:1: the file is empty"},
		"header alone":              {header, "f:2: there is a header and no order"},
		"column missing":            {"InvoiceNo,StockCode,Quantity,Country\n", "f:1:1: the header has no column InvoiceDate"},
		"column twice":              {"InvoiceNo,StockCode,Quantity,InvoiceDate,Country,Country\n", "f:1:50: the header has the column Country twice"},
		"no header":                 {"1,10001,1,2011-12-05 08:38:00,EIRE\n", "f:1:1: the header has no column InvoiceNo"},
		"too few fields":            {row("1,10001,1"), "f:3: the line has another number of fields"},
		"too many fields":           {row("1,10001,1,2011-12-05 08:38:00,EIRE,x"), "f:3: the line has another number of fields"},
		"bare quote":                {row(`1,100"01,1,2011-12-05 08:38:00,EIRE`), "f:3:6: this is not CSV"},
		"open quote":                {row(`1,"10001,1,2011-12-05 08:38:00,EIRE`), "this is not CSV"},
		"quantity zero":             {row("1,10001,0,2011-12-05 08:38:00,EIRE"), "f:3:9: Quantity is 0"},
		"quantity fraction":         {row("1,10001,1.5,2011-12-05 08:38:00,EIRE"), `f:3:9: Quantity "1.5" is not a whole number`},
		"quantity empty":            {row("1,10001,,2011-12-05 08:38:00,EIRE"), "f:3:9: Quantity is empty"},
		"quantity 2^31":             {row("1,10001,2147483648,2011-12-05 08:38:00,EIRE"), "f:3:9: Quantity 2147483648 is out of range"},
		"quantity -2^31":            {row("1,10001,-2147483648,2011-12-05 08:38:00,EIRE"), "f:3:9: Quantity -2147483648 is out of range"},
		"quantity beyond all":       {row("1,10001,99999999999999999999,2011-12-05 08:38:00,EIRE"), "is out of range"},
		"cancellation that buys":    {row("C1,10001,1,2011-12-05 08:38:00,EIRE"), "f:3:10: Quantity 1 of a cancellation"},
		"date of another land":      {row("1,10001,1,12/5/2011 8:38,EIRE"), `f:3:11: InvoiceDate "12/5/2011 8:38" is not a time`},
		"date that is none":         {row("1,10001,1,2011-02-30 08:38:00,EIRE"), "is not a time"},
		"invoice empty":             {row(",10001,1,2011-12-05 08:38:00,EIRE"), "f:3:1: InvoiceNo is empty"},
		"country empty":             {row("1,10001,1,2011-12-05 08:38:00,"), "Country is empty"},
		"country without end":       {row("1,10001,1,2011-12-05 08:38:00," + strings.Repeat("x", 201)), "Country has 201 bytes"},
		"json: not json":            {"{\n", "f:1: this is not a request"},
		"json: two in a line":       {`{"idempotencyKey":"k","lines":[{"itemId":1,"groupId":1,"quantity":1}]} {}`, "f:1: there is something behind the request"},
		"json: unknown field":       {`{"idempotencyKey":"k","colour":1}`, `f:1: this is not a request: unknown field "colour"`},
		"json: unknown op":          {`{"op":"expire","idempotencyKey":"k"}`, `f:1: op "expire" is unknown`},
		"json: no lines":            {`{"idempotencyKey":"k"}`, "f:1: lines is empty"},
		"json: no key":              {`{"lines":[{"itemId":1,"groupId":1,"quantity":1}]}`, "f:1: idempotencyKey is empty"},
		"json: quantity fraction":   {`{"idempotencyKey":"k","lines":[{"itemId":1,"groupId":1,"quantity":1.5}]}`, "f:1: this is not a request: 1.5 is not a whole number"},
		"json: quantity null":       {`{"idempotencyKey":"k","lines":[{"itemId":1,"groupId":1,"quantity":null}]}`, "f:1: "},
		"json: quantity 2^31":       {`{"idempotencyKey":"k","lines":[{"itemId":1,"groupId":1,"quantity":"2147483648"}]}`, "f:1: lines[0].quantity 2147483648 is out of range"},
		"json: item zero":           {`{"idempotencyKey":"k","lines":[{"groupId":1,"quantity":1}]}`, "f:1: lines[0].itemId 0 is not an item id"},
		"json: shop negative":       {`{"shopId":-1,"idempotencyKey":"k","lines":[{"itemId":1,"groupId":1,"quantity":1}]}`, "f:1: shopId is negative"},
		"json: ttl in minutes":      {`{"idempotencyKey":"k","lines":[{"itemId":1,"groupId":1,"quantity":1}],"ttl":"10m"}`, `f:1: ttl "10m" is not a duration`},
		"json: ttl zero":            {`{"idempotencyKey":"k","lines":[{"itemId":1,"groupId":1,"quantity":1}],"ttl":"0s"}`, `f:1: ttl "0s"`},
		"json: claim with lines":    {`{"op":"claim","idempotencyKey":"k","lines":[{"itemId":1,"groupId":1,"quantity":1}]}`, "f:1: a claim takes shopId and idempotencyKey only"},
		"json: release without key": {`{"op":"release"}`, "f:1: a release needs the idempotencyKey"},
		"json: adjust by nothing":   {`{"op":"adjust","itemId":1,"groupId":1,"adjustmentId":"a"}`, "f:1: delta 0 is out of range"},
		"json: adjust with key":     {`{"op":"adjust","idempotencyKey":"k","itemId":1,"groupId":1,"delta":1,"adjustmentId":"a"}`, "f:1: an adjust takes"},
		"json: reserve with delta":  {`{"idempotencyKey":"k","delta":1,"lines":[{"itemId":1,"groupId":1,"quantity":1}]}`, "f:1: itemId, groupId, delta"},
		"json: line without end":    {"{\"idempotencyKey\":\"k\",\"lines\":[{\"itemId\":1,\"groupId\":1,\"quantity\":1}]}\n" + strings.Repeat(" ", 1<<20), "f:2: the line has more than 1048576 bytes"},
		"json: second line":         {"\n{\"idempotencyKey\":\"k\",\"lines\":[{\"itemId\":1,\"groupId\":1,\"quantity\":1}]}\n\n[]\n", "f:4: this is not a request"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := loadgen.Read("f", strings.NewReader(tc.text))
			var pe *loadgen.ParseError
			if err == nil || !errors.As(err, &pe) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestJSONLines(t *testing.T) {
	rec := read(t, "\xef\xbb\xbf\r\n"+
		`{"shopId":"7","idempotencyKey":"k","lines":[{"itemId":"1001","groupId":"1","quantity":2}],"ttl":"600s"}`+"\r\n\r\n"+
		`{"op":"claim","shopId":7,"idempotencyKey":"k"}`+"\n"+
		`{"op":"adjust","itemId":1001,"groupId":1,"delta":"-5","adjustmentId":"a"}`)
	want := []loadgen.Request{
		{Op: reservation.OpReserve, Shop: 7, Key: "k", Lines: []reservation.Line{{Item: 1001, Group: 1, Quantity: 2}}, TTL: 10 * time.Minute, Line: 2},
		{Op: reservation.OpClaim, Given: true, Shop: 7, Key: "k", Line: 4},
		{Op: reservation.OpAdjust, Given: true, Adjust: reservation.Adjustment{ID: "a", Bucket: reservation.Bucket{Item: 1001, Group: 1}, Delta: -5}, Line: 5},
	}
	if diff := cmp.Diff(want, rec.Requests); diff != "" {
		t.Error(diff)
	}
}

func TestReadFileThatIsNotThere(t *testing.T) {
	_, err := loadgen.ReadFile(filepath.Join(t.TempDir(), "none.csv"))
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "none.csv: there is no such file") {
		t.Errorf("got %v", err)
	}
}

// The recorded days hold what their README says.
func TestRecordedDays(t *testing.T) {
	want := map[string][4]int{ // rows, invoices, cancellations, lines that are no goods
		"online-retail-2011-12-05.csv": {5331, 151, 16, 19},
		"online-retail-2011-12-06.csv": {3365, 149, 31, 14},
	}
	for _, day := range recordedDays(t) {
		rec := readDay(t, day)
		got := [4]int{rec.Rows, len(rec.Invoices)}
		for _, inv := range rec.Invoices {
			if inv.Cancellation() {
				got[2]++
			}
		}
		for _, n := range rec.NotGoods {
			got[3] += n
		}
		if got != want[filepath.Base(day)] {
			t.Errorf("%s: %v, want %v", day, got, want[filepath.Base(day)])
		}
	}
}

// Whatever is read, either it is refused with its place or it makes a plan that every store accepts.
func FuzzRead(f *testing.F) {
	f.Add([]byte(header + "1,10001,1,2011-12-05 08:38:00,EIRE\nC2,10001,-1,2011-12-05 08:39:00,EIRE\n1,POST,1,2011-12-05 08:38:00,EIRE\n3,10001,-2147483647,2011-12-05 08:38:00,EIRE\n"))
	f.Add([]byte(`{"idempotencyKey":"k","lines":[{"itemId":1,"groupId":1,"quantity":1}],"ttl":"9s"}` + "\n" + `{"op":"release","idempotencyKey":"k"}`))
	f.Add([]byte(`{"op":"adjust","itemId":1,"groupId":1,"delta":1125899906842624,"adjustmentId":"a"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		rec, err := loadgen.Read("f", bytes.NewReader(data))
		if err != nil {
			var pe *loadgen.ParseError
			if !errors.As(err, &pe) || pe.Line < 1 {
				t.Fatalf("refused without a place: %v", err)
			}
			return
		}
		for _, stock := range []loadgen.Stock{loadgen.Plenty(), loadgen.Scarce()} {
			p, err := loadgen.NewPlan(loadgen.PlanOptions{Shop: 1, Repeat: 2, Stock: stock}, rec)
			if err != nil {
				if !strings.HasPrefix(err.Error(), "f") && !strings.Contains(err.Error(), "cart ") && !strings.Contains(err.Error(), "adjustment ") {
					t.Fatalf("refused without a place: %v", err)
				}
				return
			}
			if len(p.Events) == 0 || len(p.Stock) == 0 {
				t.Fatalf("an empty plan: %+v", p)
			}
		}
	})
}
