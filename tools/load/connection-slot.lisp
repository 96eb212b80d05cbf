;;;; Connection slots and their connections: connecting, reading and writing, and the loss of a
;;;; connection. When a slot has lost a connection that had calls, it connects again at once. After
;;;; an attempt that failed the slot waits, and calls that are due meanwhile fail with UNAVAILABLE,
;;;; as gRPC's document on connection back-off says.

(in-package #:clgrpc.load)

(defparameter *longest-back-off-seconds* 10
  "The maximum number of seconds between two attempts to connect.")

;;; Counting octets where the kernel takes and gives them

(defstruct (meter (:copier nil))
  "The state of a byte channel that counts octets."
  (inner nil :type loop:byte-channel)   ; the byte channel that it reads and writes
  (tally nil :type tally))              ; the tally in which it counts

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
  "Return a byte channel that reads and writes BYTE-CHANNEL and counts the octets in TALLY."
  (loop:make-byte-channel **metered** (loop:byte-channel-descriptor byte-channel)
                          (loop:byte-channel-peer byte-channel)
                          (make-meter :inner byte-channel :tally tally)))

;;; Callbacks of the core of HTTP/2

(define-hot output-of ((http2 http2:connection)) buffer
  (loop:connection-output
   (the loop:connection
        (connection-socket (the connection (http2:connection-user http2))))))

(defun take-slot-settings (http2)
  "The function ON-SETTINGS of the sink: the first SETTINGS make the connection ready for calls."
  (let* ((connection (http2:connection-user http2))
         (connection-slot (connection-connection-slot connection)))
    (unless (connection-ready connection)
      (setf (connection-ready connection) t)
      (incf (tally-ready (generator-tally (connection-slot-generator connection-slot))))
      (incf (tally-connects (generator-tally (connection-slot-generator connection-slot))))
      (setf (connection-slot-state connection-slot) :ready))))

(defun take-goaway (http2 last-id error-code debug)
  "The function ON-GOAWAY of the sink: calls under way continue, and new calls need a new
connection."
  (declare (ignore last-id))
  (let* ((connection (http2:connection-user http2))
         (connection-slot (connection-connection-slot connection)))
    (setf (connection-failure connection)
          (format nil "GOAWAY from the server: ~A~@[, ~A~]"
                  (http2:error-code-name error-code)
                  (and (plusp (length debug)) (octets-text debug))))
    (leave-connection connection-slot connection)
    (finish-drained connection)))

(defun octets-text (octets)
  "OCTETS, which a peer has sent, as a text that may be shown."
  (printable-text (map 'string #'code-char octets) :limit 200))

(defun finish-drained (connection)
  "Close CONNECTION if it has no streams and its connection slot does not use it any more."
  (let ((http2 (connection-http2 connection)))
    (when (and (not (eq connection
                        (connection-slot-connection (connection-connection-slot connection))))
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
                   :on-writable #'resume-sending :on-settings #'take-slot-settings
                   :on-goaway #'take-goaway :on-close #'http2-closed)
  "The callbacks of the connections of all runs.")

;;; Callbacks of the loop

(define-hot take-input ((socket loop:connection) (octets octets) (start index) (end index))
    (values index boolean)
  "The handler's INPUT."
  (let* ((connection (the connection (loop:connection-user socket)))
         (http2 (the http2:connection (connection-http2 connection)))
         (connection-slot (the connection-slot (connection-connection-slot connection)))
         (generator (the generator (connection-slot-generator connection-slot))))
    (let ((consumed (http2:receive-octets http2 octets start end (note-now generator))))
      (pump-connection-slot connection-slot)
      (when (http2:connection-stop-reading-p http2)
        (setf (connection-stopped connection) t)
        (loop:stop-reading socket))
      (unless (eq connection (connection-slot-connection connection-slot))
              (finish-drained connection))
      (after-event generator)
      (values consumed nil))))

(define-hot note-flushed ((connection connection)) null
  "Write CONNECTION's output to the kernel now."
  (let ((load-call (connection-unflushed connection)))
    (when load-call
      (let* ((generator (the generator
                           (connection-slot-generator
                            (the connection-slot (connection-connection-slot connection)))))
             (now (loop:read-clock (generator-loop generator))))
        (setf (connection-unflushed connection) nil)
        (loop while load-call
              do (let ((next (load-call-later load-call)))
                   (setf (load-call-later load-call) nil
                         (load-call-chained load-call) nil)
                   (if (load-call-ended load-call)
                       (give-load-call-back generator load-call)
                       (setf (load-call-sent-ns load-call) now))
                   (setf load-call next)))))
    nil))

(define-hot fill-output ((socket loop:connection)) null
  "The handler's FILL."
  (let* ((connection (the connection (loop:connection-user socket)))
         (http2 (the http2:connection (connection-http2 connection))))
    (http2:write-queued http2 (+ 262144 (loop:connection-unsent socket)))
    (http2:give-output-back http2)
    (note-flushed connection)
    (when (and (connection-stopped connection) (not (http2:connection-stop-reading-p http2)))
      (setf (connection-stopped connection) nil)
      (loop:start-reading socket))
    nil))

(defun connection-closed (socket reason)
  "The function CLOSED of the handler: the calls on the connection fail, and its connection slot
connects again."
  (let* ((connection (loop:connection-user socket))
         (connection-slot (connection-connection-slot connection))
         (generator (connection-slot-generator connection-slot))
         (ready (connection-ready connection)))
    (note-now generator)
    (unless (connection-failure connection)
      (setf (connection-failure connection)
            (typecase reason
              (null "the server closed the connection")
              (loop:socket-error (loop:socket-error-reason reason))
              (t (string-right-trim "." (princ-to-string reason))))))
    (note-flushed connection)
    (when ready
      (decf (tally-ready (generator-tally generator))))
    (http2:receive-eof (connection-http2 connection))
    (when (eq connection (connection-slot-connection connection-slot))
      (if ready
          (leave-connection connection-slot connection)
          (connecting-failed connection-slot (connection-failure connection))))
    (pump-connection-slot connection-slot)
    (after-event generator)))

(sb-ext:define-load-time-global **handler**
  (loop:make-handler :input #'take-input :fill #'fill-output :closed #'connection-closed))

;;; Connecting

(defun connect-connection-slot (connection-slot)
  (let* ((generator (connection-slot-generator connection-slot)) (plan (generator-plan generator)))
    (setf (connection-slot-state connection-slot) :connecting
          (connection-slot-connection connection-slot) nil)
    (loop:connect-to (generator-loop generator) (connection-slot-target connection-slot)
                     (plan-connect-timeout-ns plan)
                     (lambda (byte-channel condition)
                       (note-now generator)
                       (cond (condition
                              (connecting-failed connection-slot (string-right-trim
                                                                  "." (princ-to-string condition))))
                             ((eq :closed (connection-slot-state connection-slot))
                              (loop:close-byte-channel byte-channel))
                             (t (open-connection connection-slot byte-channel)))
                       (pump-connection-slot connection-slot)
                       (after-event generator)))))

(defun open-connection (connection-slot byte-channel)
  "Begin HTTP/2 over BYTE-CHANNEL, which is connected, for CONNECTION-SLOT. If the plan has TLS, its
handshake comes first."
  (let* ((generator (connection-slot-generator connection-slot))
         (plan (generator-plan generator))
         (loop (generator-loop generator))
         (connection (make-connection
                      :connection-slot connection-slot
                      :backend (find-backend (generator-tally generator)
                                             (loop:byte-channel-peer byte-channel)))))
    (handler-case
        (let ((metered (meter-byte-channel byte-channel (generator-tally generator))))
          (when (plan-credentials plan)
            (setf metered (loop:make-tls-byte-channel loop metered (plan-credentials plan) :client
                                                      :server-name (plan-server-name plan))))
          (setf (connection-http2 connection)
                (http2:make-connection :client *sink* (plan-options-of-http2 plan)
                                       :user connection :pool (generator-pool generator))
                (connection-socket connection)
                (loop:make-connection loop metered **handler** :user connection)
                (connection-slot-connection connection-slot) connection)
          (http2:start-connection (connection-http2 connection) (generator-now generator)))
      (clgrpc-error (error)
        (loop:close-byte-channel byte-channel)
        (connecting-failed connection-slot (string-right-trim "." (princ-to-string error)))))))

(defun leave-connection (connection-slot connection)
  "Make CONNECTION-SLOT stop making calls on CONNECTION, which worked until now, and connect again.
The slot connects again at once, unless the peer has closed both this connection and the previous
one before any call."
  (when (eq connection (connection-slot-connection connection-slot))
    (setf (connection-slot-connection connection-slot) nil)
    (when (connection-used connection) (setf (connection-slot-failures connection-slot) 0))
    (cond ((eq :closed (connection-slot-state connection-slot)))
          ;; the run was given up, and the loop closes the rest
          ((loop:event-loop-stopping (generator-loop (connection-slot-generator connection-slot)))
           (setf (connection-slot-state connection-slot) :closed))
          ((plusp (connection-slot-failures connection-slot))
           (connecting-failed connection-slot (connection-failure connection)))
          (t
           (unless (connection-used connection) (incf (connection-slot-failures connection-slot)))
           (connect-connection-slot connection-slot)))))

(defun connecting-failed (connection-slot text)
  "Handle a failed attempt to connect CONNECTION-SLOT; TEXT is the reason. The calls that wait for
the slot fail, and the slot waits before the next attempt."
  (setf (connection-slot-connection connection-slot) nil
        (connection-slot-failure connection-slot) text)
  (unless (eq :closed (connection-slot-state connection-slot))
    (setf (connection-slot-state connection-slot) :waiting)
    (let* ((generator (connection-slot-generator connection-slot))
           (seconds (min *longest-back-off-seconds*
                         (expt 1.6d0 (connection-slot-failures connection-slot)))))
      (incf (connection-slot-failures connection-slot))
      (loop for load-call = (queue-first connection-slot)
            while load-call
            do (unqueue-first connection-slot)
               (end-load-call load-call +code-unavailable+ text))
      (unless (connection-slot-timer connection-slot)
        (setf (connection-slot-timer connection-slot)
              (make-timer #'connect-connection-slot connection-slot)))
      (unless (generator-done generator)
        (loop:start-timer (generator-loop generator) (connection-slot-timer connection-slot)
                          (+ (generator-now generator) (floor (* 1d9 seconds))))))))

(defun close-connection-slot (connection-slot)
  (let ((connection (connection-slot-connection connection-slot)))
    (setf (connection-slot-state connection-slot) :closed
          (connection-slot-connection connection-slot) nil)
    (loop:stop-timer (generator-loop (connection-slot-generator connection-slot))
                     (connection-slot-timer connection-slot))
    (when connection
      (http2:close-connection (connection-http2 connection) http2:+no-error+ "")
      (loop:close-connection (connection-socket connection)))))
