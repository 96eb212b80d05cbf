// Command ghz-reader reads reports as ghz does, with ghz's own code: into its types, which must know
// each field, through its printer, and into its web application by the API that takes reports.
// Prints what it has understood, or what is wrong, and exits with 1 then.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"

	"github.com/bojand/ghz/printer"
	"github.com/bojand/ghz/runner"
	"github.com/bojand/ghz/web/api"
	"github.com/bojand/ghz/web/model"
	"github.com/labstack/echo"
)

// database keeps what the API stores.
type database struct {
	report    *model.Report
	histogram *model.Histogram
	options   *model.Options
	details   []*model.Detail
}

func (d *database) CreateProject(*model.Project) error           { return nil }
func (d *database) CreateReport(r *model.Report) error           { d.report = r; return nil }
func (d *database) CreateHistogram(h *model.Histogram) error     { d.histogram = h; return nil }
func (d *database) CreateOptions(o *model.Options) error         { d.options = o; return nil }
func (d *database) FindProjectByID(uint) (*model.Project, error) { return nil, errors.New("none") }
func (d *database) UpdateProjectStatus(uint, model.Status) error { return nil }
func (d *database) FindLatestReportForProject(uint) (*model.Report, error) {
	return nil, errors.New("none")
}
func (d *database) CreateDetailsBatch(_ uint, s []*model.Detail) (uint, uint) {
	d.details = s
	return uint(len(s)), 0
}

// strictly decodes text, without what is ours, into ghz's report, which must know each field.
func strictly(text []byte) (*runner.Report, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	delete(fields, "clgrpc")
	theirs, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(theirs))
	decoder.DisallowUnknownFields()
	report := new(runner.Report)
	return report, decoder.Decode(report)
}

// ingest posts text to the API of ghz's web application and returns what it has stored.
func ingest(text []byte) (*database, error) {
	request := httptest.NewRequest(http.MethodPost, "/api/ingest", bytes.NewReader(text))
	request.Header.Set("Content-Type", "application/json")
	response := httptest.NewRecorder()
	stored := new(database)
	if err := (&api.IngestAPI{DB: stored}).Ingest(echo.New().NewContext(request, response)); err != nil {
		return nil, err
	}
	if response.Code != http.StatusCreated {
		return nil, fmt.Errorf("the API answers %d", response.Code)
	}
	return stored, nil
}

func read(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	strict, err := strictly(text)
	if err != nil {
		return fmt.Errorf("strictly: %w", err)
	}
	report := new(runner.Report)
	if err := json.Unmarshal(text, report); err != nil {
		return err
	}
	ours, _ := json.Marshal(report)
	theirs, _ := json.Marshal(strict)
	if !bytes.Equal(ours, theirs) {
		return errors.New("what is ours changes what ghz reads")
	}
	stored, err := ingest(text)
	if err != nil {
		return fmt.Errorf("ingest: %w", err)
	}
	for _, format := range []string{"summary", "csv", "html", "influx-summary", "prometheus"} {
		var out bytes.Buffer
		if err := (&printer.ReportPrinter{Out: &out, Report: report}).Print(format); err != nil {
			return fmt.Errorf("%s: %w", format, err)
		}
	}
	fmt.Printf("count %d total %d average %d fastest %d slowest %d rps %.3f\n", report.Count,
		report.Total, report.Average, report.Fastest, report.Slowest, report.Rps)
	for _, l := range report.LatencyDistribution {
		fmt.Printf("percentage %d %d\n", l.Percentage, l.Latency)
	}
	inHistogram := 0
	for _, b := range report.Histogram {
		inHistogram += b.Count
	}
	fmt.Printf("histogram %d %d\n", len(report.Histogram), inHistogram)
	fmt.Printf("end %s date %s\n", report.EndReason, report.Date.UTC().Format("2006-01-02T15:04:05Z"))
	fmt.Printf("options rps %d total %d insecure %t\n", report.Options.RPS, report.Options.Total,
		report.Options.Insecure)
	fmt.Printf("stored %d %s details %d buckets %d\n", stored.report.Count, stored.report.Status,
		len(stored.details), len(stored.histogram.Buckets))
	for _, d := range report.Details {
		fmt.Printf("detail %d %d %s %q\n", d.Timestamp.UnixNano(), d.Latency, d.Status, d.Error)
	}
	return nil
}

func main() {
	for _, path := range os.Args[1:] {
		if err := read(path); err != nil {
			fmt.Printf("FAIL %v\n", err)
			os.Exit(1)
		}
	}
}
