;;;; The command `top`: a table of the servers and channels of a process, with rates, drawn again
;;;; each second on a terminal, or once for a pipe. Rates come from channelz's counts: the
;;;; difference between two samples, divided by the time between them. Methods, with their
;;;; latencies, come from the process's metrics for Prometheus (exposition.lisp), if it has them.

(in-package #:clgrpc.tools)

;;; A sample

(defstruct (reading (:copier nil))
  "The data of one server, channel or connection at one time."
  (kind "" :type string :read-only t)   ; server, channel or socket
  (number 0 :type integer :read-only t) ; its id
  (name "" :type string :read-only t)   ; its name
  (state "" :type string :read-only t)  ; the state of a channel
  (connections 0 :type integer :read-only t) ; the number of the server's connections
  (started 0 :type integer :read-only t) ; calls that have begun
  (succeeded 0 :type integer :read-only t) ; calls that ended with OK
  (failed 0 :type integer :read-only t)) ; calls that ended with another status than OK

(defstruct (sample (:copier nil))
  "The data of a process at one time."
  (ns 0 :type integer :read-only t)     ; when the reading was made
  (readings '() :type list :read-only t) ; readings of all objects
  (methods '() :type list :read-only t) ; METHOD-READINGs, if there are metrics
  (left-out 0 :type (integer 0) :read-only t) ; how many METHOD-READINGs of the metrics are left out
  (figures '() :type list :read-only t)) ; an alist of the values of *PROCESS-METRICS*

(defun server-reading (channel server)
  (let ((data (data-of #'channelz:server-data server)))
    (make-reading :kind "server" :number (server-id server)
                  :name (server-name server)
                  :connections (handler-case
                                   (length (ask-for-server-sockets channel (server-id server)))
                                 (grpc:not-found () 0)) ; the server has just gone
                  :started (channelz:server-data-calls-started data)
                  :succeeded (channelz:server-data-calls-succeeded data)
                  :failed (channelz:server-data-calls-failed data))))

(defun channel-reading (channel-message)
  (let ((data (data-of #'channelz:channel-data channel-message)))
    (make-reading :kind "channel" :number (channel-id channel-message)
                  :name (channelz:channel-data-target data)
                  :state (connectivity-name data)
                  :connections (length (channelz:channel-subchannel-ref channel-message))
                  :started (channelz:channel-data-calls-started data)
                  :succeeded (channelz:channel-data-calls-succeeded data)
                  :failed (channelz:channel-data-calls-failed data))))

(defun read-channelz (channel)
  (append (mapcar (lambda (server) (server-reading channel server)) (ask-for-servers channel))
          (mapcar #'channel-reading (ask-for-channels channel))))

(defconstant +most-metrics-octets+ (expt 2 26) "The maximum number of octets of a page of metrics.")

(defun parse-url (text)
  "TEXT, http://HOST:PORT/PATH or https://…, as a URL. Signal a USAGE-ERROR if TEXT is not such a
URL."
  (handler-case (token:parse-url text)
    (misuse (error) (refuse "~A" error))))

(defun get-metrics (url &optional credentials)
  "Read the metrics at URL, which PARSE-URL returned. Return three values: the METHOD-READINGs, the
metrics of the process, and the number of METHOD-READINGs that were left out. If URL begins with
https, use TLS with CREDENTIALS, or with the system's roots if CREDENTIALS is nil. Signal a FAILURE
if the metrics cannot be read."
  (multiple-value-bind (status octets)
      (handler-case
          (token:http-request "GET" url :headers '(("accept" . "text/plain;version=0.0.4"))
                                        :credentials credentials
                                        :most-octets +most-metrics-octets+)
        (grpc:rpc-error (error) (fail-command "~A" (grpc:rpc-error-message error))))
    (unless (= 200 status)
      (fail-command "GET of the metrics at ~A got the HTTP status ~D" (token:url-text url) status))
    (multiple-value-bind (methods left-out) (read-methods octets)
      (values methods (read-figures octets) left-out))))

(defun find-metrics (address &optional credentials)
  "The URL of the metrics at ADDRESS, over TLS with CREDENTIALS unless these are nil. Return nil if
ADDRESS has no metrics."
  (handler-case (let ((url (parse-url (format nil "http~:[~;s~]://~A/metrics" credentials
                                              address))))
                  (get-metrics url credentials)
                  url)
    ((or failure usage-error) () nil)))

(defun take-sample (channel url credentials)
  "A sample of the process at the other end of CHANNEL, with its metrics at URL, unless URL is nil.
CREDENTIALS, which may be nil, are those of GET-METRICS. A process with metrics need not serve
channelz."
  (multiple-value-bind (methods figures left-out)
      (if url (get-metrics url credentials) (values '() '() 0))
    (make-sample :ns (monotonic-ns) :methods methods :figures figures :left-out left-out
                 :readings (handler-case (read-channelz channel)
                             (grpc:unimplemented (error)
                               (if url '() (error error)))))))

;;; The table

(defun earlier-p (old new)
  "True if OLD, a sample, is an earlier sample of NEW's process: the process of NEW did not start
later, and no count is lower in NEW than in OLD."
  (flet ((fallen-p (olds news same-p count)
           (declare (type function same-p count))
           (loop for old in olds
                 for new = (find old news :test same-p)
                 thereis (and new (< (funcall count new) (funcall count old)))))
         (same-reading-p (a b) (= (reading-number a) (reading-number b)))
         (began (sample)
           (cdr (assoc "process_start_time_seconds" (sample-figures sample) :test #'string=))))
    (not (or (and (began old) (began new) (< (began old) (began new)))
             (fallen-p (sample-readings old) (sample-readings new) #'same-reading-p
                       #'reading-started)
             (fallen-p (sample-methods old) (sample-methods new) #'same-method-p
                       #'method-reading-ended)))))

(defun rate (new old seconds reader)
  "The difference of READER's values for NEW and OLD, readings, divided by SECONDS. If OLD is nil,
since NEW is of an object that has come meanwhile, its counts began at 0."
  (declare (type function reader))
  (if (plusp seconds)
      (/ (- (funcall reader new) (if old (funcall reader old) 0)) seconds)
      0))

(defparameter *orders* '("calls" "failed" "p99" "running" "name")
  "The columns by which tables may be sorted; a table without the column is sorted by calls.")

(defun sorted-rows (rows order)
  "ROWS sorted by ORDER, one of *ORDERS*: names ascending, numbers descending. Each of ROWS is a
list: a sort key for each of *ORDERS*, and then the row itself."
  (let ((place (position order *orders* :test #'string=)))
    (flet ((key (row) (nth place row)))
      (mapcar (lambda (row) (nth (length *orders*) row))
              (if (string= order "name")
                  (stable-sort rows #'string< :key #'key)
                  (stable-sort rows #'> :key (lambda (row) (or (key row) 0))))))))

(defun sample-rows (new old &optional (order "calls"))
  "The rows of the table for NEW, a sample taken after OLD, another sample or nil, sorted by ORDER."
  (let* ((seconds (if old (/ (- (sample-ns new) (sample-ns old)) 1d9) 0))
         (rows (loop for reading in (sample-readings new)
                     for before = (and old (find (reading-number reading) (sample-readings old)
                                                 :key #'reading-number))
                     collect (list (rate reading before seconds #'reading-started)
                                   (rate reading before seconds #'reading-failed)
                                   reading))))
    (sorted-rows
     (loop for (calls failures reading) in rows
           for running = (- (reading-started reading) (reading-succeeded reading)
                            (reading-failed reading))
           collect (list calls failures calls running (reading-name reading)
                         (list (reading-kind reading) (reading-number reading)
                               (if old (format nil "~,1F" calls) "-")
                               (if old (format nil "~,1F" failures) "-")
                               running (reading-started reading) (reading-failed reading)
                               (reading-connections reading)
                               (reading-state reading) (reading-name reading))))
     order)))

(defun shown-latency (seconds)
  "The text of SECONDS, which may be nil, in milliseconds."
  (if seconds (format nil "~,2F" (* 1000 seconds)) "-"))

(defun same-method-p (a b)
  (and (string= (method-reading-name a) (method-reading-name b))
       (string= (method-reading-role a) (method-reading-role b))
       (string= (method-reading-target a) (method-reading-target b))))

(defun method-rows (new old &optional (order "calls"))
  "The rows of the table of methods for NEW, a sample taken after OLD, another sample or nil, sorted
by ORDER. Latencies are those of the calls between the two samples. If OLD is nil, or if no calls
were made in between, latencies are those of all calls."
  (let* ((seconds (if old (/ (- (sample-ns new) (sample-ns old)) 1d9) 0))
         (rows (loop for method in (sample-methods new)
                     for before = (and old (find method (sample-methods old) :test #'same-method-p))
                     for buckets = (buckets-since method before)
                     collect (list (rate method before seconds #'method-reading-ended)
                                   (rate method before seconds #'method-reading-failed)
                                   (bucket-quantile 1/2 buckets) (bucket-quantile 99/100 buckets)
                                   method))))
    (sorted-rows
     (loop for (calls failures p50 p99 method) in rows
           for started = (method-reading-started method)
           for running = (and started (- started (method-reading-ended method)))
           collect (list calls failures p99 running (method-reading-name method)
                         (list (method-reading-role method)
                               (if old (format nil "~,1F" calls) "-")
                               (if old (format nil "~,1F" failures) "-")
                               (shown-latency p50) (shown-latency p99)
                               (or running "-")
                               (method-reading-ended method) (method-reading-failed method)
                               (format nil "~A~@[ ~A~]" (method-reading-name method)
                                       (and (string/= "" (method-reading-target method))
                                            (method-reading-target method))))))
     order)))

(defun write-sample (new old &optional (order "calls"))
  (when (sample-methods new)
    (write-table '("KIND" "CALLS/S" "FAILED/S" "P50 MS" "P99 MS" "RUNNING" "CALLS" "FAILED"
                   "METHOD")
                 (method-rows new old order))
    (when (plusp (sample-left-out new))
      (format t "~D further methods of the metrics are not read.~%" (sample-left-out new)))
    (terpri))
  (write-table '("KIND" "ID" "CALLS/S" "FAILED/S" "RUNNING" "CALLS" "FAILED" "PEERS" "STATE" "NAME")
               (sample-rows new old order)))

;;; The head

(defun head-line (new old)
  "A line about the process in NEW, a sample taken after OLD, another sample or nil. Return nil if
NEW has no metrics."
  (flet ((figure (sample name) (cdr (assoc name (sample-figures sample) :test #'string=))))
    (let ((cpu (figure new "process_cpu_seconds_total"))
          (before (and old (figure old "process_cpu_seconds_total")))
          (used (figure new "clgrpc_heap_used_bytes"))
          (limit (figure new "clgrpc_heap_limit_bytes"))
          (began (figure new "process_start_time_seconds")))
      (when cpu
        (format nil "~@[CPU ~,1F %  ~]heap ~,1F of ~,1F MB  collections ~D  threads ~D  ~
                     descriptors ~D~@[  up ~A~]"
                (and before (* 100 (/ (- cpu before)
                                      (max 1/1000 (/ (- (sample-ns new) (sample-ns old)) 1d9)))))
                (/ (or used 0) 1d6) (/ (or limit 0) 1d6)
                (floor (or (figure new "clgrpc_gc_collections_total") 0))
                (floor (or (figure new "process_threads") 0))
                (floor (or (figure new "process_open_fds") 0))
                (and began (uptime-text (max 0 (- (/ (real-time-ns) 1d9) began)))))))))

(defun uptime-text (seconds)
  (multiple-value-bind (minutes seconds) (floor (floor seconds) 60)
    (multiple-value-bind (hours minutes) (floor minutes 60)
      (if (plusp hours)
          (format nil "~D:~2,'0D:~2,'0D" hours minutes seconds)
          (format nil "~D:~2,'0D" minutes seconds)))))

;;; The terminal

(defun terminal-p ()
  (and (interactive-stream-p sb-sys:*stdout*) t))

(defun stty (&rest arguments)
  "The output of stty with ARGUMENTS for the terminal, or nil if stty fails."
  (ignore-errors (uiop:run-program (cons "stty" arguments) :input :interactive
                                                           :output '(:string :stripped t))))

(defun terminal-size ()
  "Return two values: the numbers of lines and columns of the terminal, or 24 and 80 if these are
unknown."
  (let* ((words (uiop:split-string (or (stty "size") "") :separator " "))
         (numbers (mapcar (lambda (word) (parse-integer word :junk-allowed t)) words)))
    (if (and (= 2 (length numbers)) (every #'identity numbers) (every #'plusp numbers))
        (values (first numbers) (second numbers))
        (values 24 80))))

(defun fit-lines (lines height width)
  "The first HEIGHT of LINES, cut at WIDTH. If LINES are more than HEIGHT, the last line shown gives
the number of lines left out."
  (flet ((cut (line) (subseq line 0 (min width (length line)))))
    (mapcar #'cut
            (if (<= (length lines) height)
                lines
                (append (subseq lines 0 (max 0 (1- height)))
                        (list (format nil "… ~D more" (- (length lines) (max 0 (1- height))))))))))

(defun typed-key (seconds)
  "The key, a character, that is typed within SECONDS; nil if no key is typed; :end at the end of
the input."
  (and (sb-sys:wait-until-fd-usable 0 :input seconds nil)
       (or (read-char *standard-input* nil nil) :end)))

(defun call-with-screen (function)
  "Call FUNCTION while the terminal shows a screen of its own. Meanwhile each key is read at once
and not echoed."
  (stty "-icanon" "-echo" "min" "1")
  (format t "~C[?1049h~:*~C[?25l" #\Escape)
  (unwind-protect (funcall function)
    (format t "~C[?25h~:*~C[?1049l" #\Escape)
    (finish-output)
    (stty "icanon" "echo")))

(defun draw-lines (lines)
  "Draw those of LINES for which the terminal has room."
  (multiple-value-bind (height width) (terminal-size)
    (format t "~C[H~:*~C[J~{~A~^~%~}" #\Escape (fit-lines lines height width))
    (finish-output)))

(defun text-lines (text)
  (uiop:split-string (string-right-trim '(#\Newline) text) :separator '(#\Newline)))

(defun screen-lines (title new old order)
  "The lines of a screen below TITLE for NEW, a sample taken after OLD, another sample or nil."
  (append (list title)
          (let ((head (head-line new old))) (and head (list head)))
          '("")
          (text-lines (with-output-to-string (*standard-output*) (write-sample new old order)))))

(defun next-order (order)
  (nth (mod (1+ (position order *orders* :test #'string=)) (length *orders*)) *orders*))

(defun draw-samples (take-sample address interval)
  "Every INTERVAL seconds draw the sample of the process at ADDRESS that TAKE-SAMPLE, a function,
returns, until the key q is typed; the key s changes to the next of *ORDERS*. While the process does
not answer, show that, and ask it again."
  (declare (type function take-sample))
  (call-with-screen
   (lambda ()
     (loop with old = nil and order = "calls" and key = nil
           for title = (format nil "~A, each ~A s, by ~A; s sorts, q quits" (shown address)
                               (float interval) order)
           do (handler-case
                  (let ((new (funcall take-sample)))
                    (draw-lines (screen-lines title new (and old (earlier-p old new) old) order))
                    (setf old new))
                ((or grpc:rpc-error failure) (error)
                  ;; if the process was restarted, differences to its former counts mean nothing
                  (setf old nil)
                  (draw-lines (list title "" (format nil "no answer: ~A" error)))))
              (setf key (typed-key interval))
           until (member key '(:end #\q #\Q))
           when (member key '(#\s #\S)) do (setf order (next-order order))))))

(define-command "top"
    (((address "ADDRESS" (address-parser 1) "Where a server serves channelz."))
     ((metrics "URL" #'parse-url nil
               "The URL at which the process serves metrics for Prometheus, http://HOST:PORT/metrics
      or https://…; by default /metrics at ADDRESS, if that answers. Without metrics the table of
      methods is missing.")
      (interval "DURATION" #'parse-seconds 1 "The time between two looks.")
      (once "[true|false]" #'parse-boolean nil
            "Look twice, an interval apart, print one table and end; this is the default if the
      output is not a terminal.")
      client-tls))
    "Show how busy the servers and channels of a process are, live: calls and failures a second, how
many run, latencies by method, connections of servers and subchannels of channels. Asks its
channelz service, and reads its metrics."
  (grpc:with-channel (channel address
                      :credentials (client-credentials tls-ca tls-cert tls-key tls-name))
    (let* ((credentials (client-credentials tls-ca tls-cert tls-key tls-name :alpn nil))
           (url (or metrics (find-metrics address credentials))))
      (flet ((take-sample () (take-sample channel url credentials)))
        (if (or once (not (terminal-p)))
            (let ((old (take-sample)))
              (sleep interval)
              (let ((new (take-sample)))
                (write-sample new (and (earlier-p old new) old))))
            (draw-samples #'take-sample address interval)))))
  0)
