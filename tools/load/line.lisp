;;;; Lines and their connections: connecting, what comes and goes, what is done when a connection is
;;;; lost. A line connects again at once when it has lost a connection that had calls; after an
;;;; attempt that failed it waits, and calls that are due meanwhile fail with UNAVAILABLE, as gRPC's
;;;; document on connection back-off has it.

(in-package #:clgrpc.load)

(defparameter *longest-back-off-seconds* 10 "Between two attempts to connect.")

;;; Octets are counted where they meet the kernel

(defstruct (meter (:copier nil))
  "The state of a byte channel that counts."
  (inner nil :type loop:byte-channel)   ; what it reads and writes
  (tally nil :type tally))              ; where it counts

(declaim (sb-ext:freeze-type meter))

(define-hot read-metered
            ((byte-channel loop:byte-channel) (octets octets) (start index) (end index))
    fixnum
  (let* ((meter (the meter (loop:byte-channel-state byte-channel)))
         (inner (meter-inner meter))
         (result (loop:byte-channel-read inner octets start end)))
    (when (plusp result) (incf (tally-received-octets (meter-tally meter)) result))
    (setf (loop:byte-channel-more byte-channel) (loop:byte-channel-more inner))
    (when (= result loop:+broken+)
      (setf (loop:byte-channel-failure byte-channel) (loop:byte-channel-failure inner)))
    result))

(define-hot write-metered
            ((byte-channel loop:byte-channel) (octets octets) (start index) (end index))
    fixnum
  (let* ((meter (the meter (loop:byte-channel-state byte-channel)))
         (result (loop:byte-channel-write (meter-inner meter) octets start end)))
    (when (plusp result) (incf (tally-sent-octets (meter-tally meter)) result))
    (when (= result loop:+broken+)
      (setf (loop:byte-channel-failure byte-channel)
            (loop:byte-channel-failure (meter-inner meter))))
    result))

(defun metered-inner (byte-channel)
  (meter-inner (loop:byte-channel-state byte-channel)))

(sb-ext:define-load-time-global **metered**
  (loop:make-byte-channel-kind :name "metered" :read #'read-metered :write #'write-metered
                               :shutdown (lambda (byte-channel)
                                           (loop:shut-byte-channel-down
                                            (metered-inner byte-channel)))
                               :close (lambda (byte-channel)
                                        (loop:close-byte-channel (metered-inner byte-channel)))))

(defun meter-byte-channel (byte-channel tally)
  "A byte channel over BYTE-CHANNEL that counts in TALLY what is read and written."
  (loop:make-byte-channel **metered** (loop:byte-channel-descriptor byte-channel)
                          (loop:byte-channel-peer byte-channel)
                          (make-meter :inner byte-channel :tally tally)))

;;; What the core of HTTP/2 calls

(define-hot output-of ((http2 http2:connection)) buffer
  (loop:connection-output
   (the loop:connection
        (connection-socket (the connection (http2:connection-user http2))))))

(defun take-settings (http2)
  "The sink's ON-SETTINGS: with the first, the connection is one to use."
  (let* ((connection (http2:connection-user http2))
         (line (connection-line connection)))
    (unless (connection-ready connection)
      (setf (connection-ready connection) t)
      (incf (tally-ready (lane-tally (line-lane line))))
      (incf (tally-connects (lane-tally (line-lane line))))
      (setf (line-state line) :ready))))

(defun take-goaway (http2 last-id error-code debug)
  "The sink's ON-GOAWAY: new calls need a new connection; those under way go on."
  (declare (ignore last-id))
  (let* ((connection (http2:connection-user http2))
         (line (connection-line connection)))
    (setf (connection-failure connection)
          (format nil "GOAWAY from the server: ~A~@[, ~A~]"
                  (http2:error-code-name error-code)
                  (and (plusp (length debug)) (octets-text debug))))
    (leave-connection line connection)
    (finish-drained connection)))

(defun octets-text (octets)
  "OCTETS, a peer's, as text to be shown."
  (printable-text (map 'string #'code-char octets) :limit 200))

(defun finish-drained (connection)
  "Close CONNECTION if it is its line's no more and has no streams."
  (let ((http2 (connection-http2 connection)))
    (when (and (not (eq connection (line-connection (connection-line connection))))
               (zerop (http2:connection-stream-count http2))
               (not (http2:connection-closed-p http2)))
      (http2:close-connection http2 http2:+no-error+ "")
      (loop:close-connection (connection-socket connection)))))

(defun http2-closed (http2 error-code text)
  "The sink's ON-CLOSE."
  (let ((connection (http2:connection-user http2)))
    (unless (connection-failure connection)
      (setf (connection-failure connection)
            (format nil "HTTP/2 connection error ~A: ~A" (http2:error-code-name error-code) text)))
    (loop:close-connection (connection-socket connection))))

(defvar *sink*
  (http2:make-sink :on-output #'output-of :on-headers #'take-headers :on-data #'take-data
                   :on-trailers #'take-trailers :on-reset #'take-reset
                   :on-writable #'resume-sending :on-settings #'take-settings
                   :on-goaway #'take-goaway :on-close #'http2-closed)
  "What the connections of all runs call.")

;;; What the loop calls

(define-hot take-input ((socket loop:connection) (octets octets) (start index) (end index))
    (values index boolean)
  "The handler's INPUT."
  (let* ((connection (the connection (loop:connection-user socket)))
         (http2 (the http2:connection (connection-http2 connection)))
         (line (the line (connection-line connection)))
         (lane (the lane (line-lane line))))
    (let ((consumed (http2:receive-octets http2 octets start end (note-now lane))))
      (pump-line line)
      (when (http2:connection-stop-reading-p http2)
        (setf (connection-stopped connection) t)
        (loop:stop-reading socket))
      (unless (eq connection (line-connection line)) (finish-drained connection))
      (after-event lane)
      (values consumed nil))))

(define-hot note-flushed ((connection connection)) null
  "What CONNECTION's output holds goes to the kernel now."
  (let ((flight (connection-unflushed connection)))
    (when flight
      (let* ((lane (the lane (line-lane (the line (connection-line connection)))))
             (now (loop:read-clock (lane-loop lane))))
        (setf (connection-unflushed connection) nil)
        (loop while flight
              do (let ((next (flight-later flight)))
                   (setf (flight-later flight) nil
                         (flight-chained flight) nil)
                   (if (flight-ended flight)
                       (give-flight-back lane flight)
                       (setf (flight-sent-ns flight) now))
                   (setf flight next)))))
    nil))

(define-hot fill-output ((socket loop:connection)) null
  "The handler's FILL."
  (let* ((connection (the connection (loop:connection-user socket)))
         (http2 (the http2:connection (connection-http2 connection))))
    (http2:write-queued http2 (+ 262144 (loop:connection-unsent socket)))
    (setf (http2:connection-output http2) nil)
    (note-flushed connection)
    (when (and (connection-stopped connection) (not (http2:connection-stop-reading-p http2)))
      (setf (connection-stopped connection) nil)
      (loop:start-reading socket))
    nil))

(defun connection-closed (socket reason)
  "The handler's CLOSED: the calls on it fail, and its line connects again."
  (let* ((connection (loop:connection-user socket))
         (line (connection-line connection))
         (lane (line-lane line))
         (ready (connection-ready connection)))
    (note-now lane)
    (unless (connection-failure connection)
      (setf (connection-failure connection)
            (typecase reason
              (null "the server closed the connection")
              (loop:socket-error (loop:socket-error-reason reason))
              (t (string-right-trim "." (princ-to-string reason))))))
    (note-flushed connection)
    (when ready
      (decf (tally-ready (lane-tally lane))))
    (http2:receive-eof (connection-http2 connection))
    (when (eq connection (line-connection line))
      (if ready
          (leave-connection line connection)
          (connecting-failed line (connection-failure connection))))
    (pump-line line)
    (after-event lane)))

(sb-ext:define-load-time-global **handler**
  (loop:make-handler :input #'take-input :fill #'fill-output :closed #'connection-closed))

;;; Connecting

(defun connect-line (line)
  "Begin to connect LINE."
  (let* ((lane (line-lane line)) (plan (lane-plan lane)))
    (setf (line-state line) :connecting
          (line-connection line) nil)
    (loop:connect-to (lane-loop lane) (line-target line) (plan-connect-timeout-ns plan)
                     (lambda (byte-channel condition)
                       (note-now lane)
                       (cond (condition
                              (connecting-failed line (string-right-trim
                                                       "." (princ-to-string condition))))
                             ((eq :closed (line-state line)) (loop:close-byte-channel byte-channel))
                             (t (open-connection line byte-channel)))
                       (pump-line line)
                       (after-event lane)))))

(defun open-connection (line byte-channel)
  "Begin HTTP/2, behind TLS if there is any, over BYTE-CHANNEL, which is connected, for LINE."
  (let* ((lane (line-lane line))
         (plan (lane-plan lane))
         (loop (lane-loop lane))
         (connection (make-connection
                      :line line
                      :backend (find-backend (lane-tally lane)
                                             (loop:byte-channel-peer byte-channel)))))
    (handler-case
        (let ((metered (meter-byte-channel byte-channel (lane-tally lane))))
          (when (plan-credentials plan)
            (setf metered (loop:make-tls-byte-channel loop metered (plan-credentials plan) :client
                                                      :server-name (plan-server-name plan))))
          (setf (connection-http2 connection)
                (http2:make-connection :client *sink* (plan-options-of-http2 plan)
                                       :user connection :pool (lane-pool lane))
                (connection-socket connection)
                (loop:make-connection loop metered **handler** :user connection)
                (line-connection line) connection)
          (http2:start-connection (connection-http2 connection) (lane-now lane)))
      (clgrpc-error (error)
        (loop:close-byte-channel byte-channel)
        (connecting-failed line (string-right-trim "." (princ-to-string error)))))))

(defun leave-connection (line connection)
  "LINE makes no more calls on CONNECTION, which worked, and connects anew: at once, but for a peer
that has sent away one before this, and this, before they had a call."
  (when (eq connection (line-connection line))
    (setf (line-connection line) nil)
    (when (connection-used connection) (setf (line-failures line) 0))
    (cond ((eq :closed (line-state line)))
          ;; the run was given up, and the loop closes what is left
          ((loop:event-loop-stopping (lane-loop (line-lane line)))
           (setf (line-state line) :closed))
          ((plusp (line-failures line))
           (connecting-failed line (connection-failure connection)))
          (t
           (unless (connection-used connection) (incf (line-failures line)))
           (connect-line line)))))

(defun connecting-failed (line text)
  "An attempt to connect LINE has failed because of TEXT: its calls that wait fail, and it waits
before the next attempt."
  (setf (line-connection line) nil
        (line-failure line) text)
  (unless (eq :closed (line-state line))
    (setf (line-state line) :waiting)
    (let* ((lane (line-lane line))
           (seconds (min *longest-back-off-seconds* (expt 1.6d0 (line-failures line)))))
      (incf (line-failures line))
      (loop for flight = (queue-first line)
            while flight
            do (unqueue-first line)
               (end-flight flight +code-unavailable+ text))
      (unless (line-timer line)
        (setf (line-timer line) (make-timer #'connect-line line)))
      (unless (lane-done lane)
        (schedule-timer (lane-wheel lane) (line-timer line)
                        (+ (lane-now lane) (floor (* 1d9 seconds))))))))

(defun close-line (line)
  "End LINE and its connection."
  (let ((connection (line-connection line)))
    (setf (line-state line) :closed
          (line-connection line) nil)
    (when (line-timer line)
      (cancel-timer (lane-wheel (line-lane line)) (line-timer line)))
    (when connection
      (http2:close-connection (connection-http2 connection) http2:+no-error+ "")
      (loop:close-connection (connection-socket connection)))))
