;;;; The command `top`: a table of what the servers and channels of a process do, with rates, drawn
;;;; anew each second on a terminal, or once for a pipe. Rates are of what channelz counts: the
;;;; difference between two looks by the time between them. Methods, with their latencies, come
;;;; from what the process tells Prometheus (exposition.lisp), if it does.

(in-package #:clgrpc.tools)

;;; A look

(defstruct (reading (:copier nil))
  "What is known of one thing at one time."
  (kind "" :type string :read-only t)   ; server, channel or socket
  (number 0 :type integer :read-only t) ; its id
  (name "" :type string :read-only t)   ; what it is called
  (state "" :type string :read-only t)  ; of a channel
  (connections 0 :type integer :read-only t) ; how many it has
  (started 0 :type integer :read-only t) ; calls
  (succeeded 0 :type integer :read-only t) ; those that ended with OK
  (failed 0 :type integer :read-only t)) ; those that ended otherwise

(defstruct (look (:copier nil))
  "All that was known at one time."
  (ns 0 :type integer :read-only t)     ; when
  (readings '() :type list :read-only t) ; of what there is
  (methods '() :type list :read-only t)) ; METHOD-READINGs, if metrics are told

(defun server-reading (channel server)
  (let ((data (channelz:server-data server)))
    (make-reading :kind "server" :number (server-id server)
                  :name (channelz:server-ref-name (channelz:server-ref server))
                  :connections (handler-case
                                   (length (ask-for-server-sockets channel (server-id server)))
                                 (grpc:not-found () 0)) ; it has just gone
                  :started (channelz:server-data-calls-started data)
                  :succeeded (channelz:server-data-calls-succeeded data)
                  :failed (channelz:server-data-calls-failed data))))

(defun channel-reading (channel-message)
  (let ((data (channelz:channel-data channel-message)))
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

(defun get-methods (url)
  "The METHOD-READINGs of the metrics at URL, of PARSE-URL."
  (multiple-value-bind (status octets)
      (get-over-http url :accept "text/plain;version=0.0.4")
    (unless (= 200 status) (fail-command "GET ~A is answered with ~D" (third url) status))
    (read-methods octets)))

(defun find-metrics (address)
  "The URL of the metrics at ADDRESS, or nil if it does not tell of any."
  (handler-case (let ((url (parse-url (format nil "http://~A/metrics" address))))
                  (get-methods url)
                  url)
    ((or failure usage-error) () nil)))

(defun take-look (channel url)
  "A look at the process that CHANNEL leads to and whose metrics are at URL, or nil. With metrics it
need not serve channelz."
  (make-look :ns (monotonic-ns)
             :methods (and url (get-methods url))
             :readings (handler-case (read-channelz channel)
                         (grpc:unimplemented (error)
                           (if url '() (error error))))))

;;; The table

(defun rate (new old seconds reader)
  "The difference of what READER gives for NEW and OLD, readings or nil, for each of SECONDS."
  (declare (type function reader))
  (if (and old (plusp seconds))
      (/ (- (funcall reader new) (funcall reader old)) seconds)
      0))

(defun look-rows (new old)
  "The rows of the table for NEW, a look, after OLD, another or nil; the busiest first."
  (let* ((seconds (if old (/ (- (look-ns new) (look-ns old)) 1d9) 0))
         (rows (loop for reading in (look-readings new)
                     for before = (and old (find (reading-number reading) (look-readings old)
                                                 :key #'reading-number))
                     collect (list (rate reading before seconds #'reading-started)
                                   (rate reading before seconds #'reading-failed)
                                   reading))))
    (loop for (calls failures reading) in (stable-sort rows #'> :key #'first)
          collect (list (reading-kind reading) (reading-number reading)
                        (if old (format nil "~,1F" calls) "-")
                        (if old (format nil "~,1F" failures) "-")
                        (- (reading-started reading) (reading-succeeded reading)
                           (reading-failed reading))
                        (reading-started reading) (reading-failed reading)
                        (reading-connections reading)
                        (reading-state reading) (reading-name reading)))))

(defun shown-latency (seconds)
  "SECONDS, or nil, as milliseconds."
  (if seconds (format nil "~,2F" (* 1000 seconds)) "-"))

(defun same-method-p (a b)
  (and (string= (method-reading-name a) (method-reading-name b))
       (string= (method-reading-role a) (method-reading-role b))
       (string= (method-reading-target a) (method-reading-target b))))

(defun method-rows (new old)
  "The rows of the table of methods for NEW, a look, after OLD, another or nil; the busiest first.
Latencies are those of the calls between the two; or of all, if there was none."
  (let* ((seconds (if old (/ (- (look-ns new) (look-ns old)) 1d9) 0))
         (rows (loop for method in (look-methods new)
                     for before = (and old (find method (look-methods old) :test #'same-method-p))
                     for buckets = (buckets-since method before)
                     collect (list (rate method before seconds #'method-reading-ended)
                                   (rate method before seconds #'method-reading-failed)
                                   (bucket-quantile 1/2 buckets) (bucket-quantile 99/100 buckets)
                                   method))))
    (loop for (calls failures p50 p99 method) in (stable-sort rows #'> :key #'first)
          for started = (method-reading-started method)
          collect (list (method-reading-role method)
                        (if old (format nil "~,1F" calls) "-")
                        (if old (format nil "~,1F" failures) "-")
                        (shown-latency p50) (shown-latency p99)
                        (if started (- started (method-reading-ended method)) "-")
                        (method-reading-ended method) (method-reading-failed method)
                        (format nil "~A~@[ ~A~]" (method-reading-name method)
                                (and (string/= "" (method-reading-target method))
                                     (method-reading-target method)))))))

(defun write-look (new old)
  (when (look-methods new)
    (write-table '("KIND" "CALLS/S" "FAILED/S" "P50 MS" "P99 MS" "RUNNING" "CALLS" "FAILED"
                   "METHOD")
                 (method-rows new old))
    (terpri))
  (write-table '("KIND" "ID" "CALLS/S" "FAILED/S" "RUNNING" "CALLS" "FAILED" "PEERS" "STATE" "NAME")
               (look-rows new old)))

;;; The terminal

(defun terminal-p ()
  "True if standard output is a terminal."
  (and (interactive-stream-p sb-sys:*stdout*) t))

(defun quit-asked-p (seconds)
  "Wait SECONDS for a key; true if it is q, or there is no more input."
  (let ((ready (sb-sys:wait-until-fd-usable 0 :input seconds nil)))
    (and ready
         (let ((char (read-char *standard-input* nil nil)))
           (or (null char) (char-equal #\q char))))))

(defun call-with-keys (function)
  "Call FUNCTION while the terminal gives each key at once and does not show it."
  (flet ((stty (&rest arguments)
           (ignore-errors (uiop:run-program (cons "stty" arguments) :input :interactive))))
    (stty "-icanon" "-echo" "min" "1")
    (unwind-protect (funcall function)
      (stty "icanon" "echo"))))

(defun draw-looks (channel url address interval)
  "Draw a look at CHANNEL's process, at ADDRESS, whose metrics are at URL or nil, each INTERVAL
seconds until somebody types q."
  (call-with-keys
   (lambda ()
     (loop with old = nil
           for new = (take-look channel url)
           do (format t "~C[H~C[2J~A, each ~A s, q quits~2%" #\Escape #\Escape (shown address)
                      (float interval))
              (write-look new old)
              (finish-output)
              (setf old new)
           until (quit-asked-p interval)))))

(define-command "top"
    (((address "ADDRESS" (address-parser 1) "Where a server serves channelz."))
     ((metrics "URL" #'parse-url nil
               "Where it tells Prometheus of metrics, http://HOST:PORT/metrics; without this,
      /metrics at ADDRESS if that answers. Without metrics there is no table of methods.")
      (interval "DURATION" #'parse-seconds 1 "How often to look.")
      (once "[true|false]" #'parse-boolean nil
            "Look twice, an interval apart, print one table and end; also where the output is no
      terminal.")
      client-tls))
    "Show how busy the servers and channels of a process are, live: calls and failures a second, how
many run, latencies by method, connections of servers and subchannels of channels. Asks its
channelz service, and reads its metrics."
  (grpc:with-channel (channel address
                      :credentials (client-credentials tls-ca tls-cert tls-key tls-name))
    (let ((url (or metrics (find-metrics address))))
      (if (or once (not (terminal-p)))
          (let ((old (take-look channel url)))
            (sleep interval)
            (write-look (take-look channel url) old))
          (draw-looks channel url address interval))))
  0)
