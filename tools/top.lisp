;;;; The command `top`: a table of what the servers and channels of a process do, with rates, drawn
;;;; anew each second on a terminal, or once for a pipe. Rates are of what channelz counts: the
;;;; difference between two looks by the time between them.

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
  (readings '() :type list :read-only t)) ; of what there is

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

(defun take-look (channel)
  (make-look :ns (monotonic-ns)
             :readings (append (mapcar (lambda (server) (server-reading channel server))
                                       (ask-for-servers channel))
                               (mapcar #'channel-reading (ask-for-channels channel)))))

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

(defun write-look (new old)
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

(defun draw-looks (channel address interval)
  "Draw a look at CHANNEL's process, at ADDRESS, each INTERVAL seconds until somebody types q."
  (call-with-keys
   (lambda ()
     (loop with old = nil
           for new = (take-look channel)
           do (format t "~C[H~C[2J~A, each ~A s, q quits~2%" #\Escape #\Escape (shown address)
                      (float interval))
              (write-look new old)
              (finish-output)
              (setf old new)
           until (quit-asked-p interval)))))

(define-command "top"
    (((address "ADDRESS" (address-parser 1) "Where a server serves channelz."))
     ((interval "SECONDS" #'parse-seconds 1 "How often to look.")
      (once "[true|false]" #'parse-boolean nil
            "Look twice, an interval apart, print one table and end; also where the output is no
      terminal.")
      client-tls))
    "Show how busy the servers and channels of a process are, live: calls and failures a second, how
many run, connections of servers and subchannels of channels. Asks its channelz service."
  (grpc:with-channel (channel address
                      :credentials (client-credentials tls-ca tls-cert tls-key tls-name))
    (if (or once (not (terminal-p)))
        (let ((old (take-look channel)))
          (sleep interval)
          (write-look (take-look channel) old))
        (draw-looks channel address interval)))
  0)
