;;;; Sockets for users: a connection with callbacks. Those of a server share one MANNER, which says
;;;; what their callbacks and marks are; a socket that gets others has a copy of it. What few need
;;;; (output before there is a connection, time-outs) is in EXTRA.
;;;;
;;;; READ-CB (socket octets) takes what has come, a fresh vector; of an in-place socket READ-CB
;;;; (socket octets start end) reads it where the loop has it, until it returns. EVENT-CB
;;;; (condition) is told why the socket has closed, once, unless we closed it. WRITE-CB (socket) is
;;;; called each time all output has been given to the system; DRAIN-CB (socket) when it has gone
;;;; down to LOW-WATER octets after it was more than HIGH-WATER.
;;;;
;;;; Output is sent at the end of the turn. Who wants to know that it has gone AWAITS it: before
;;;; each attempt to send, the connection's FILL defers a look at what is left, which the next turn
;;;; does. A time-out moves nothing when octets come or go but a time; its timer looks at that.

(in-package #:clgrpc.async)

(defconstant +high-water-octets+ 65536
  "More unsent output than this is too much, unless the user says otherwise.")

(defstruct manner
  "What sockets share; callbacks as above. INCOMING ones were accepted by a server."
  (read-cb nil :type callback)
  (event-cb nil :type callback)
  (connect-cb nil :type callback)
  (write-cb nil :type callback)
  (drain-cb nil :type callback)
  (in-place nil :type boolean)
  (stream nil :type boolean)            ; READ-CB gets a stream; see stream.lisp
  (incoming nil :type boolean)
  (tls nil :type (or null tls-credentials))
  (high-water +high-water-octets+ :type index)
  (low-water (ash +high-water-octets+ -2) :type index)
  (max-unsent (options-max-unsent-octets loop:**default-options**) :type index)
  (read-timeout nil :type (or null real))
  (write-timeout nil :type (or null real)))

(defstruct (extra (:copier nil))
  "EARLY is output from before there is a connection, STREAM the socket's, if it is used as one. A
time-out has a timer and NS, and the last time something moved."
  (early nil :type (or null buffer))
  (stream nil)
  (read-timer nil :type (or null timer))
  (read-ns 0 :type nanoseconds)
  (read-at 0 :type nanoseconds)
  (write-timer nil :type (or null timer))
  (write-ns 0 :type nanoseconds)
  (written-at 0 :type nanoseconds))

(defstruct (socket (:include handle) (:constructor %make-socket) (:copier nil)
                   (:conc-name %socket-))
  "A connection to read and write, made by a server or by TCP-CONNECT."
  (connection nil :type (or null loop:connection)) ; nil until there is one
  (manner nil :type manner)
  (data nil)
  (extra nil :type (or null extra))
  (closed nil :type boolean)
  (awaits nil :type boolean)
  (choked nil :type boolean))           ; the output went past the high-water mark

(declaim (sb-ext:freeze-type manner extra socket))

(defmethod print-object ((manner manner) stream)
  (print-unreadable-object (manner stream :type t :identity t)))

(defmethod print-object ((socket socket) stream)
  (print-unreadable-object (socket stream :type t :identity t)
    (let ((connection (%socket-connection socket)))
      (format stream "~:[to~;from~] ~A~:[~; closed~]" (manner-incoming (%socket-manner socket))
              (if connection (loop:connection-peer connection) "nobody yet")
              (%socket-closed socket)))))

(defun socket-data (socket)
  "The user's own datum of SOCKET, nil at first. SETFable."
  (%socket-data socket))

(defun (setf socket-data) (datum socket)
  (setf (%socket-data socket) datum))

(defun socket-closed-p (socket)
  "True if SOCKET is closed, or about to be when its output is sent. From any thread."
  (%socket-closed socket))

(defun socket-peer (socket)
  "The address of SOCKET's peer, as text, or nil if it is not connected yet."
  (let ((connection (%socket-connection socket)))
    (and connection (loop:connection-peer connection))))

(defun socket-unsent-octets (socket)
  "How many octets of SOCKET's output the system has not taken yet. On its loop."
  (let ((connection (%socket-connection socket)) (extra (%socket-extra socket)))
    (cond (connection (loop:connection-unsent connection))
          ((and extra (extra-early extra)) (buffer-fill (extra-early extra)))
          (t 0))))

(defun ensure-extra (socket)
  (or (%socket-extra socket) (setf (%socket-extra socket) (make-extra))))

;;; What the connection calls

(define-hot socket-input ((connection loop:connection) (octets octets) (start index) (end index))
    index
  "The handler's INPUT: READ-CB takes it all."
  (let* ((socket (the socket (loop:connection-user connection)))
         (manner (%socket-manner socket))
         (read-cb (manner-read-cb manner))
         (extra (%socket-extra socket)))
    (when extra (setf (extra-read-at extra) (loop:event-loop-now (handle-loop socket))))
    (when read-cb
      (with-callback (socket (manner-event-cb manner))
        (let ((function (callback-function read-cb)))
          (if (manner-in-place manner)
              (funcall function socket octets start end)
              (funcall function socket (subseq-octets octets start end))))))
    end))

(define-hot socket-fill ((connection loop:connection)) null
  "The handler's FILL: have somebody look what is left of the output."
  (let ((socket (the socket (loop:connection-user connection))))
    (when (%socket-awaits socket)
      (loop:defer (loop:connection-loop connection) #'look-at-output socket))
    nil))

(defun look-at-output (socket)
  "There was an attempt to send output of SOCKET: tell those who await that it has gone."
  (let* ((connection (%socket-connection socket))
         (manner (%socket-manner socket))
         (extra (%socket-extra socket))
         (unsent (loop:connection-unsent connection)))
    (when (and (%socket-awaits socket)
               (member (loop:connection-state connection) '(:open :closing :lingering)))
      (when extra (setf (extra-written-at extra) (loop:event-loop-now (handle-loop socket))))
      (when (zerop unsent) (setf (%socket-awaits socket) nil))
      (when (and (%socket-choked socket) (<= unsent (manner-low-water manner)))
        (setf (%socket-choked socket) nil)
        (when (manner-drain-cb manner)
          (with-callback (socket (manner-event-cb manner))
            (funcall (manner-drain-cb manner) socket))))
      (when (and (zerop unsent) (manner-write-cb manner))
        (with-callback (socket (manner-event-cb manner))
          (funcall (manner-write-cb manner) socket))))))

(defun socket-gone (connection reason)
  "The handler's CLOSED."
  (let ((socket (loop:connection-user connection)))
    (end-use socket)
    (unless (%socket-closed socket)
      (leave-socket socket)
      (unless (loop:event-loop-stopping (handle-loop socket))
        (tell-event socket
                    (typecase reason
                      (null (make-condition 'socket-eof))
                      (socket-error reason)
                      (t (make-condition 'socket-error :reason (princ-to-string reason)))))))))

(define-load-time-global **socket-handler**
    (loop:make-handler :input #'socket-input :fill #'socket-fill :closed #'socket-gone))

;;; Life

(defun begin-socket (socket)
  "SOCKET, just made, is in use."
  (let ((program (loop-program (handle-loop socket))) (manner (%socket-manner socket)))
    (when (or (manner-read-timeout manner) (manner-write-timeout manner))
      (set-timeouts socket (manner-read-timeout manner) (manner-write-timeout manner)))
    (begin-use socket)
    (if (manner-incoming manner)
        (incf (program-incoming program))
        (incf (program-outgoing program)))))

(defun open-connection (socket transport server-name)
  "TRANSPORT is connected: from now on SOCKET reads and writes it, with TLS if its manner says so.
Signal SOCKET-ERROR or TLS-ERROR, and close TRANSPORT, if that cannot be."
  (let* ((loop (handle-loop socket))
         (manner (%socket-manner socket))
         (tls (manner-tls manner))
         (made nil))
    (unwind-protect
         (let ((transport (if tls
                              (loop:make-tls-transport loop transport tls
                                                  (if (manner-incoming manner) :server :client)
                                                  :server-name server-name)
                              transport)))
           (setf (%socket-connection socket)
                 (loop:make-connection loop transport **socket-handler** :user socket
                                  :max-unsent-octets (manner-max-unsent manner))
                 made t))
      (unless made (loop:close-transport transport)))
    (when (and tls (not (manner-incoming manner)))
      (loop:begin-handshake (%socket-connection socket)))
    (let ((early (and (%socket-extra socket) (shiftf (extra-early (%socket-extra socket)) nil))))
      (when early
        (append-octets (loop:connection-output (%socket-connection socket)) (buffer-octets early)
                       :start (buffer-start early) :end (buffer-end early)))))
  nil)

(defun leave-socket (socket)
  "SOCKET is closed for its user."
  (let* ((loop (handle-loop socket))
         (program (loop-program loop))
         (extra (%socket-extra socket)))
    (setf (%socket-closed socket) t)
    (if (manner-incoming (%socket-manner socket))
        (decf (program-incoming program))
        (decf (program-outgoing program)))
    (when extra
      (stop-timer loop (extra-read-timer extra))
      (stop-timer loop (extra-write-timer extra))
      ;; a stream can be read to its end
      (unless (extra-stream extra) (setf (%socket-extra socket) nil)))))

(defun stop-timer (loop timer)
  (when timer (cancel-timer (loop:event-loop-wheel loop) timer)))

(defun tell-event (handle condition)
  "Give CONDITION to the event callback of HANDLE, a socket, or log it if there is none."
  (let ((event-cb (manner-event-cb (%socket-manner handle))))
    (when (typep condition 'socket-error) (setf (loop:socket-error-owner condition) handle))
    (cond (event-cb (with-callback (handle nil) (funcall event-cb condition)))
          ((typep condition 'socket-eof))
          (t (log-event :info :socket-failed :socket handle :reason (princ-to-string condition))))))

(defun close-socket (socket &key force)
  "Close SOCKET: send its output first, or with FORCE drop it; a peer that takes nothing of it for
two seconds loses the rest. Its event callback is not called. Closing again does nothing. From any
thread."
  (let ((loop (handle-loop socket)))
    (loop:with-baton (loop) (close-now socket force)
      (post loop (lambda () (close-now socket force))))
    nil))

(defun close-now (socket force)
  (unless (%socket-closed socket)
    (leave-socket socket)
    (unless (%socket-connection socket) (end-use socket)))
  (let ((connection (%socket-connection socket)))
    (when connection (loop:close-connection connection :abort force))))

(defmethod cancel ((socket socket) &optional text)
  (declare (ignore text))
  (close-socket socket :force t))

;;; Output

(defun output-octets (data)
  "DATA of a user, no octets, as octets."
  (typecase data
    (string (string-octets data))
    (sequence (coerce data 'octets))
    (t (misuse "Octets, a string or another sequence of octets are wanted, not ~S." data))))

(define-hot write-now ((socket socket) (octets octets) (start index) (end index)) boolean
  "Append the octets to what SOCKET is to send. Return true if it is ready for more."
  (let ((connection (%socket-connection socket)) (manner (%socket-manner socket)))
    (cond ((%socket-closed socket) nil)
          (t (append-octets (if connection
                                (loop:connection-output connection)
                                (early-output socket))
                            octets :start start :end end)
             (when (or (manner-write-cb manner) (%socket-extra socket)) (await-output socket))
             (or (<= (the index (socket-unsent-octets socket)) (manner-high-water manner))
                 (progn (setf (%socket-choked socket) t)
                        (await-output socket)
                        nil))))))

(defun early-output (socket)
  (let ((extra (ensure-extra socket)))
    (or (extra-early extra) (setf (extra-early extra) (make-buffer :size 64)))))

(defun await-output (socket)
  "Have somebody look when SOCKET's output has been sent, and when it is not for too long."
  (unless (%socket-awaits socket)
    (setf (%socket-awaits socket) t)
    (let ((extra (%socket-extra socket)))
      (when (and extra (extra-write-timer extra))
        (let ((loop (handle-loop socket)))
          (setf (extra-written-at extra) (loop:event-loop-now loop))
          (schedule-timer (loop:event-loop-wheel loop) (extra-write-timer extra)
                          (+ (loop:event-loop-now loop) (extra-write-ns extra)))))))
  nil)

(define-hot write-socket-data ((socket socket) data &key (start index 0) (end (or null index))
                               (read-cb callback) (write-cb callback) (event-cb callback)
                               (force t))
    boolean
  "Send DATA, or what is from START to END of it, to SOCKET's peer, at the end of the loop's turn,
behind what was written before: octets (the fastest), a string, as UTF-8, or another sequence of
octets. DATA may be changed afterwards. Before there is a connection it waits for that; once SOCKET
is closed it is lost. READ-CB, WRITE-CB and EVENT-CB, where they are given, are SOCKET's callbacks
from now on. Nothing depends on FORCE.
Return true if SOCKET is ready for more; false if it is closed, or more of its output is unsent than
its high-water mark: then it is best to wait for its drain callback. From any thread; by another
than that which runs the loop true is returned if SOCKET was not closed."
  (declare (ignore force))
  (let* ((octets (if (typep data 'octets) data (the octets (output-octets data))))
         (end (or end (length octets)))
         (loop (handle-loop socket)))
    (flet ((write-it (octets start end)
             (declare (type octets octets) (type index start end))
             (when (or read-cb write-cb event-cb)
               (set-callbacks socket read-cb write-cb event-cb))
             (write-now socket octets start end)))
      (declare (inline write-it))
      (if (loop:holds-baton-p loop)
          (write-it octets start end)
          (let ((copy (subseq-octets octets start end)))
            (and (post loop (lambda () (write-it copy 0 (length copy))))
                 (not (%socket-closed socket))))))))

(defun set-callbacks (socket read-cb write-cb event-cb)
  (let ((manner (setf (%socket-manner socket) (copy-manner (%socket-manner socket)))))
    (when read-cb
      (setf (manner-read-cb manner) (if (manner-stream manner) (stream-feeder read-cb) read-cb)))
    (when write-cb (setf (manner-write-cb manner) write-cb))
    (when event-cb (setf (manner-event-cb manner) event-cb))))

;;; Input

(defun disable-socket (socket &key read)
  "With READ, read no more of SOCKET until ENABLE-SOCKET; what the peer sends waits, and at last the
peer does. On its loop."
  (let ((connection (%socket-connection socket)))
    (when (and read connection) (loop:stop-reading connection))
    nil))

(defun enable-socket (socket &key read)
  "With READ, read SOCKET again. On its loop."
  (let ((connection (%socket-connection socket)))
    (when (and read connection (not (%socket-closed socket))) (loop:start-reading connection))
    nil))

;;; Time-outs

(defun set-socket-timeouts (socket read-seconds write-seconds)
  "When nothing has come for READ-SECONDS, a real, or output has waited for WRITE-SECONDS and
none of it was taken, close SOCKET and give its event callback a SOCKET-TIMEOUT; nil, or a number
that is not positive, is never. Signal SOCKET-CLOSED if it is closed. On its loop."
  (when (%socket-closed socket)
    (error 'socket-closed :owner socket :operation "set the time-outs of" :reason "it is closed"))
  (set-timeouts socket read-seconds write-seconds))

(defun set-timeouts (socket read-seconds write-seconds)
  (flet ((ns (seconds)
           (if (and seconds (plusp seconds)) (seconds-ns seconds) 0)))
    (let* ((loop (handle-loop socket))
           (wheel (loop:event-loop-wheel loop))
           (now (loop:event-loop-now loop))
           (extra (ensure-extra socket)))
      (stop-timer loop (extra-read-timer extra))
      (stop-timer loop (extra-write-timer extra))
      (setf (extra-read-ns extra) (ns read-seconds)
            (extra-read-at extra) now
            (extra-write-ns extra) (ns write-seconds)
            (extra-written-at extra) now
            (extra-read-timer extra) nil
            (extra-write-timer extra) nil)
      (when (plusp (extra-read-ns extra))
        (setf (extra-read-timer extra) (make-timer #'check-reading socket))
        (schedule-timer wheel (extra-read-timer extra) (+ now (extra-read-ns extra))))
      (when (plusp (extra-write-ns extra))
        (setf (extra-write-timer extra) (make-timer #'check-writing socket))
        (when (%socket-awaits socket)
          (schedule-timer wheel (extra-write-timer extra) (+ now (extra-write-ns extra)))))
      nil)))

(defun check-reading (socket)
  (let ((extra (%socket-extra socket)))
    (check-time socket (extra-read-timer extra) (+ (extra-read-at extra) (extra-read-ns extra))
                "nothing has come for too long")))

(defun check-writing (socket)
  (let ((extra (%socket-extra socket)))
    (when (%socket-awaits socket)
      (check-time socket (extra-write-timer extra)
                  (+ (extra-written-at extra) (extra-write-ns extra))
                  "the peer takes nothing"))))

(defun check-time (socket timer end-ns text)
  "TIMER has run: look again at END-NS, or, if that is past, give SOCKET up."
  (let ((loop (handle-loop socket)))
    (cond ((< (loop:event-loop-now loop) end-ns)
           (schedule-timer (loop:event-loop-wheel loop) timer end-ns))
          (t (close-now socket t)
             (tell-event socket (make-condition 'socket-timeout :reason text))))))
