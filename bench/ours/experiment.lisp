;;;; The results of bench/experiment.py, as text, JSON and a page. CLGRPC_MANIFEST names the file
;;;; that bench/experiment.py has written, CLGRPC_RESULTS the directory for the results.

(load (merge-pathnames "../../scripts/load.lisp" *load-truename*))
(in-package #:clgrpc.scripts)
(load-strictly "clgrpc-tools/report")

(defpackage #:clgrpc.experiment
  (:use #:cl)
  (:import-from #:clgrpc.report #:mean)
  (:local-nicknames (#:base #:clgrpc.base) (#:load #:clgrpc.load) (#:report #:clgrpc.report)
                    (#:page #:clgrpc.page)))
(in-package #:clgrpc.experiment)

(defun field (object name) (cdr (assoc name object :test #'string=)))

(defun read-file (path)
  (base:parse-json (uiop:read-file-string path :external-format :utf-8)))

(defparameter *manifest* (read-file (uiop:getenv "CLGRPC_MANIFEST")))

(defun rows (name) (coerce (field *manifest* name) 'list))

(defun row-is-p (row server load)
  (and (string= server (field row "server")) (string= load (field row "load"))))

(defun names-of (rows kind)
  (remove-duplicates (mapcar (lambda (row) (field row kind)) rows) :test #'string= :from-end t))

;;; A contest: a server under a load, in several rounds

(defstruct contest server load runs rows)

(defun cpu (contest name)
  "Nanoseconds of CPU a call in the rounds of CONTEST."
  (loop for row in (contest-rows contest)
        collect (/ (* 1000000000 (rational (field row name))) (field row "requests"))))

(defun figure (contest name)
  (cond ((string= name "server CPU/call") (cpu contest "serverCpu"))
        ((string= name "load CPU/call") (cpu contest "loadCpu"))
        (t (mapcar (lambda (run) (report:figure-value name run)) (contest-runs contest)))))

(defparameter *contests*
  (loop with rows = (rows "rows")
        for server in (names-of rows "server")
        append (loop for load in (names-of rows "load")
                     for own = (remove-if-not (lambda (row) (row-is-p row server load)) rows)
                     collect (make-contest
                              :server server :load load :rows own
                              :runs (loop for row in own
                                          collect (report:read-run-file (field row "report")))))))

(defun find-contest (server load)
  (find-if (lambda (contest) (and (string= server (contest-server contest))
                                  (string= load (contest-load contest))))
           *contests*))

(defun servers () (names-of (rows "rows") "server"))
(defun loads () (names-of (rows "rows") "load"))

(defparameter *figures* '("p50" "p90" "p99" "p99.9" "max" "mean" "server CPU/call" "load CPU/call"))

(defun latency-of (contest)
  (load:merge-histograms (mapcar #'load:run-latency (contest-runs contest))))

(defun compare (name before after)
  (report:compare-values name :time :less (figure before name) (figure after name)))

(defun comparisons ()
  "Our server compared with the others, under each load: lists (load peer comparisons)."
  (loop for load in (loads)
        append (loop for peer in (rest (servers))
                     collect (list load peer
                                   (loop for name in (butlast *figures*)
                                         collect (compare name (find-contest peer load)
                                                          (find-contest "clgrpc" load)))))))

;;; Full speed

(defun full-speed-figures (server load)
  "Calls a second, ns of the load's CPU a call, and of the server's."
  (let ((rows (remove-if-not (lambda (row) (row-is-p row server load)) (rows "fullSpeed"))))
    (flet ((per-call (name)
             (mean (loop for row in rows
                         collect (/ (* 1000000000 (rational (field row name)))
                                    (field row "requests"))))))
      (list (mean (loop for row in rows collect (rational (field row "rate"))))
            (per-call "loadCpu") (per-call "serverCpu")))))

(defun full-speed ()
  "Lists (server load rate load-ns server-ns)."
  (loop with rows = (rows "fullSpeed")
        for server in (names-of rows "server")
        append (loop for load in (names-of rows "load")
                     collect (list* server load (full-speed-figures server load)))))

(defun load-ratio (server load other figures)
  "The cost of LOAD per call against SERVER, as a share of OTHER's; FIGURES gives both."
  (/ (funcall figures server load) (funcall figures server other)))

(defun at-rate-ratio (server)
  (load-ratio server "clgrpc load" "ghz"
              (lambda (server load) (mean (figure (find-contest server load) "load CPU/call")))))

(defun full-speed-ratio (server)
  (load-ratio server "clgrpc load" "h2load"
              (lambda (server load) (second (full-speed-figures server load)))))

;;; Text

(defun text-table (stream head rows)
  (let ((widths (apply #'mapcar (lambda (&rest cells) (reduce #'max cells :key #'length))
                       (cons head rows))))
    (dolist (row (cons head rows))
      (format stream " ~{ ~VA~}~%" (loop for cell in row for width in widths
                                         collect width collect cell)))
    (terpri stream)))

(defun figure-cells (contest)
  (loop for name in *figures* collect (page:duration-text (mean (figure contest name)))))

(defun full-speed-cells ()
  (loop for (server load rate load-ns server-ns) in (full-speed)
        collect (list server load (page:digits-text rate) (page:duration-text load-ns)
                      (page:duration-text server-ns))))

(defun ratio-lines ()
  (append
   (loop for server in (servers)
         for ratio = (at-rate-ratio server)
         collect (format nil "At ~D a second against ~A, `clgrpc load` takes 1/~A of ghz's CPU ~
                              a call."
                         (field *manifest* "rate") server (page:digits-text (/ ratio))))
   (loop for server in (names-of (rows "fullSpeed") "server")
         collect (format nil "At full speed against ~A, it takes ~A times h2load's."
                         server (page:digits-text (full-speed-ratio server))))))

(defun machine-line ()
  (let ((machine (field *manifest* "machine")))
    (format nil "~A, ~D cores, Linux ~A; ~A; ~A; ~A; ~A; ~A; commit ~A, ~A; others used ~D % of ~
                 the machine."
            (field machine "processor") (field machine "cores") (field machine "kernel")
            (field machine "sbcl") (field machine "go") (field machine "grpc_go")
            (field machine "tonic") (field machine "h2load") (field machine "commit")
            (field machine "date") (round (field machine "others")))))

(defun title ()
  (format nil "~:D calls a second, ~:D calls to each server" (field *manifest* "rate")
          (field *manifest* "requests")))

(defun write-text (stream)
  (format stream "~A~%~%~A~2%" (title) (machine-line))
  (dolist (load (loads))
    (format stream "As ~A sees it, means of ~D rounds:~%" load (field *manifest* "rounds"))
    (text-table stream (cons "" *figures*)
                (loop for server in (servers)
                      collect (cons server (figure-cells (find-contest server load))))))
  (loop for (load peer comparisons) in (comparisons)
        do (format stream "Our server instead of ~A, as ~A sees it:~%" peer load)
           (dolist (comparison comparisons)
             (format stream "  ~A~%" (report:comparison-words comparison)))
           (terpri stream))
  (format stream "Full speed, 10 connections with 100 streams each:~%")
  (text-table stream '("server" "load" "calls/s" "load CPU/call" "server CPU/call")
              (full-speed-cells))
  (format stream "~{~A~%~}~%Commands:~%" (ratio-lines))
  (loop for (name . command) in (field *manifest* "commands")
        do (format stream "  ~A: ~A~%" name command)))

;;; JSON

(defun json-number (value) (float value 1d0))

(defun results-json ()
  `(("machine" . ,(field *manifest* "machine")) ("rate" . ,(field *manifest* "rate"))
    ("requests" . ,(field *manifest* "requests")) ("rounds" . ,(field *manifest* "rounds"))
    ("absent" . ,(field *manifest* "absent")) ("commands" . ,(field *manifest* "commands"))
    ("atRate" . ,(coerce (loop for contest in *contests*
                               collect `(("server" . ,(contest-server contest))
                                         ("load" . ,(contest-load contest))
                                         ("figuresNs"
                                          . ,(loop for name in *figures*
                                                   collect (cons name
                                                                 (map 'simple-vector #'json-number
                                                                      (figure contest name)))))))
                         'simple-vector))
    ("fullSpeed" . ,(coerce (loop for (server load rate load-ns server-ns) in (full-speed)
                                  collect `(("server" . ,server) ("load" . ,load)
                                            ("callsPerSecond" . ,(json-number rate))
                                            ("loadCpuNs" . ,(json-number load-ns))
                                            ("serverCpuNs" . ,(json-number server-ns))))
                            'simple-vector))))

;;; The page

(defparameter *classes* '("p50" "p99" "good" "p90") "Colours of the servers, in their order.")

(defun percentile-chart (load)
  (let* ((latencies (loop for server in (servers) collect (latency-of (find-contest server load))))
         (x (page:tail-scale 5))
         (y (page:log-scale (* 9/10 (reduce #'min latencies :key #'load:histogram-min))
                            (* 11/10 (reduce #'max latencies :key #'load:histogram-max))
                            :text #'page:duration-tick)))
    (list (page:chart (format nil "Latency by percentile, as ~A sees it." load)
                      (loop for latency in latencies
                            for class in *classes*
                            collect (page:line-layer
                                     (loop for i from 0 to 160
                                           for share = (- 1 (rational (expt 10d0 (- (/ i 32)))))
                                           collect (cons share
                                                         (load:histogram-quantile latency share)))
                                     x y class))
                      :x x :y y :height 260)
          (apply #'page:legend (mapcar #'cons *classes* (servers))))))

(defun figure-table (load)
  (page:table (cons '("") (loop for name in *figures* collect (list name :number)))
              (loop for server in (servers)
                    collect (cons server (figure-cells (find-contest server load))))
              :label (format nil "Figures as ~A sees them" load)))

(defun comparison-card (load peer comparisons)
  (page:card (format nil "Our server instead of ~A, as ~A sees it" peer load)
             (list `(:ul () ,@(loop for comparison in comparisons
                                    collect `(:li (:class ,(report:verdict-class comparison))
                                              ,(report:comparison-words comparison)))))
             :half t))

(defun write-html (stream)
  (page:write-page
   stream (title) (machine-line)
   (list
    (page:tiles
     (append
      (loop for server in (servers)
            collect (list (format nil "p99 of ~A" server)
                          (page:duration-text
                           (mean (figure (find-contest server "clgrpc load") "p99")))))
      (loop for server in (servers)
            collect (list (format nil "CPU a call, ~A" server)
                          (page:duration-text (mean (figure (find-contest server "clgrpc load")
                                                            "server CPU/call")))))
      (list (list "clgrpc load : ghz" (format nil "1 : ~A" (page:digits-text
                                                            (/ (at-rate-ratio "clgrpc")))))
            (list "clgrpc load : h2load" (format nil "~A : 1" (page:digits-text
                                                               (full-speed-ratio "clgrpc")))))))
    (loop for load in (loads)
          collect (page:card (format nil "As ~A sees it" load)
                             (list (percentile-chart load) (figure-table load))))
    (loop for (load peer comparisons) in (comparisons)
          collect (comparison-card load peer comparisons))
    (page:card "The cost of the loads"
               (list (page:table '(("server") ("load") ("calls a second" :number)
                                   ("load CPU a call" :number) ("server CPU a call" :number))
                                 (full-speed-cells) :label "Full speed")
                     `(:ul () ,@(loop for line in (ratio-lines) collect `(:li () ,line))))
               :note "The table is of full speed: 10 connections with 100 streams each. The CPU of a
load is that of its whole process, from start to end.")
    (page:card "How it was measured"
               (list (page:facts (loop for (name . command) in (field *manifest* "commands")
                                        collect (list name command))))))))

(defun write-result (name function)
  (with-open-file (stream (merge-pathnames name (uiop:ensure-directory-pathname
                                                 (uiop:getenv "CLGRPC_RESULTS")))
                          :direction :output :if-exists :supersede :external-format :utf-8)
    (funcall function stream)))

(write-result "report.txt" #'write-text)
(write-result "report.html" #'write-html)
(write-result "report.json" (lambda (stream)
                              (base:write-json (results-json) :stream stream)
                              (terpri stream)))
(write-text *standard-output*)
