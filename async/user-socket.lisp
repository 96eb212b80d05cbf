;;;; Sockets for users: a connection with callbacks. The sockets of a server share one object of
;;;; settings: callbacks, marks and time-outs. A socket that gets other callbacks has a copy of that
;;;; object.
;;;;
;;;; READ-CB (socket octets) takes the received octets, a fresh vector; the READ-CB of an in-place
;;;; socket, (socket octets start end), reads them in the loop's own vector, until it returns.
;;;; EVENT-CB (condition) gets the reason why the socket has closed, once, unless we closed it.
;;;; WRITE-CB (socket) is called each time all output has been given to the system; DRAIN-CB
;;;; (socket) when the output has gone down to LOW-WATER octets after there was more than
;;;; HIGH-WATER.
;;;;
;;;; Output is sent at the end of the turn. While a socket's slot AWAITS is true, a callback or a
;;;; time-out waits for its output to be sent. Then the connection's FILL, which is called before
;;;; each attempt to send, defers a function that checks in the next turn how many octets are left.
;;;; When octets are received or sent, only the time is noted; the timer of a time-out checks that
;;;; time when it fires.

(in-package #:clgrpc.async)

(defconstant +high-water-octets+ 65536
  "The default number of octets of unsent output above which WRITE-SOCKET-DATA returns false.")

(defstruct (socket-settings (:conc-name settings-))
  "The settings that sockets share; the callbacks are described above."
  (read-cb nil :type callback)          ; gets received octets: see STREAM and IN-PLACE
  (event-cb nil :type callback)         ; called with conditions
  (connect-cb nil :type callback)       ; (socket), called once there is a connection
  (write-cb nil :type callback)         ; the callback for when all output is written
  (drain-cb nil :type callback)         ; the callback for when there is room for output again
  (in-place nil :type boolean)          ; READ-CB reads where the loop has the octets
  (stream nil :type (or null function)) ; makes READ-CB from a callback for a stream
  (incoming nil :type boolean)          ; true if a server has accepted the sockets
  (tls nil :type (or null tls-credentials)) ; nil: the sockets do not speak TLS
  (high-water +high-water-octets+ :type index) ; more unsent octets than this are too many
  ;; after HIGH-WATER was passed, DRAIN-CB is called at so few unsent octets
  (low-water (ash +high-water-octets+ -2) :type index)
  ;; unsent octets past which the socket is not read
  (max-unsent (options-max-unsent-octets loop:**default-options**) :type index)
  ;; how many seconds may pass without input; nil for no limit
  (read-timeout nil :type (or null real))
  (write-timeout nil :type (or null real))) ; how many seconds output may wait; nil for no limit

(defstruct (timeouts (:copier nil))
  "The time-outs of a socket."
  (read-timer nil :type (or null timer)) ; nil: there is no time-out
  (read-ns 0 :type nanoseconds)         ; the longest time without received octets
  (read-at 0 :type nanoseconds)         ; when octets were last received
  (write-timer nil :type (or null timer)) ; nil: there is no time-out
  ;; how long output may wait while the system accepts none of it
  (write-ns 0 :type nanoseconds)
  (written-at 0 :type nanoseconds))     ; when output was last accepted, or began to wait

(defstruct (socket (:include handle) (:constructor %make-socket) (:copier nil)
                   (:conc-name %socket-))
  "A connection to read and write, made by a server or by TCP-CONNECT."
  (connection nil :type (or null loop:connection)) ; nil until there is one
  (settings nil :type socket-settings)  ; the settings that its user asked for
  (data nil)                            ; the user's datum
  (early nil :type (or null buffer))    ; output that was written before there was a connection
  (paused nil :type boolean)            ; it must not be read once there is a connection
  (stream nil)                          ; the socket's ASYNC-IO-STREAM, once that exists
  (timeouts nil :type (or null timeouts)) ; nil while the socket has no time-outs
  (closed nil :type boolean)            ; closed for its user; the connection may still send
  (awaits nil :type boolean)            ; a look at the remaining output will be deferred
  (choked nil :type boolean))           ; the output went past the high-water mark

(declaim (sb-ext:freeze-type socket-settings timeouts socket))

(defmethod print-object ((settings socket-settings) stream)
  (print-unreadable-object (settings stream :type t :identity t)))

(defmethod print-object ((timeouts timeouts) stream)
  (print-unreadable-object (timeouts stream :type t :identity t)))

(defmethod print-object ((socket socket) stream)
  (print-unreadable-object (socket stream :type t :identity t)
    (let ((connection (%socket-connection socket)))
      (format stream "~:[to~;from~] ~A~:[~; closed~]" (settings-incoming (%socket-settings socket))
              (if connection (loop:connection-peer connection) "no peer yet")
              (%socket-closed socket)))))

(defun socket-data (socket)
  "The datum that the user has attached to SOCKET with SETF, nil at first. No lock guards it: use it
on the loop, or guard it yourself."
  (%socket-data socket))

(defun (setf socket-data) (datum socket)
  (setf (%socket-data socket) datum))

(defun socket-closed-p (socket)
  "True if SOCKET is closed, or will be closed as soon as its output is sent. From any thread."
  (%socket-closed socket))

(defun socket-peer (socket)
  "The address of SOCKET's peer, as text, or nil if it is not connected yet. On its loop."
  (let ((connection (%socket-connection socket)))
    (and connection (loop:connection-peer connection))))

(defun socket-unsent-octets (socket)
  "The number of octets of SOCKET's output that the kernel has not accepted yet. On its loop."
  (let ((connection (%socket-connection socket)) (early (%socket-early socket)))
    (cond (connection (loop:connection-unsent connection))
          (early (buffer-fill early))
          (t 0))))

;;; Callbacks of the connection

(define-hot socket-input ((connection loop:connection) (octets octets) (start index) (end index))
    index
  "Call READ-CB, which takes all octets; this is INPUT of the connection's handler."
  (let* ((socket (the socket (loop:connection-user connection)))
         (settings (%socket-settings socket))
         (read-cb (settings-read-cb settings))
         (timeouts (%socket-timeouts socket)))
    (when timeouts
      (setf (timeouts-read-at timeouts) (loop:event-loop-now (handle-loop socket))))
    (when read-cb
      (with-callback (socket (settings-event-cb settings))
        (let ((function (callback-function read-cb)))
          (if (settings-in-place settings)
              (funcall function socket octets start end)
              (funcall function socket (subseq-octets octets start end))))))
    end))

(define-hot socket-fill ((connection loop:connection)) null
  "Check the remaining output later in this turn; this is FILL of the connection's handler."
  (let ((socket (the socket (loop:connection-user connection))))
    (when (%socket-awaits socket)
      (loop:defer (loop:connection-loop connection) #'look-at-output socket))
    nil))

(defun look-at-output (socket)
  "After an attempt to send output of SOCKET, call the callbacks that wait until output is sent."
  (let* ((connection (%socket-connection socket))
         (settings (%socket-settings socket))
         (timeouts (%socket-timeouts socket))
         (unsent (loop:connection-unsent connection)))
    (when (and (%socket-awaits socket)
               (member (loop:connection-state connection) '(:open :closing :lingering)))
      (when timeouts
        (setf (timeouts-written-at timeouts) (loop:event-loop-now (handle-loop socket))))
      (when (zerop unsent) (setf (%socket-awaits socket) nil))
      (when (and (%socket-choked socket) (<= unsent (settings-low-water settings)))
        (setf (%socket-choked socket) nil)
        (when (settings-drain-cb settings)
          (with-callback (socket (settings-event-cb settings))
            (funcall (settings-drain-cb settings) socket))))
      (when (and (zerop unsent) (settings-write-cb settings))
        (with-callback (socket (settings-event-cb settings))
          (funcall (settings-write-cb settings) socket))))))

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
  "Put SOCKET, which was just made, into use."
  (let ((program (loop-program (handle-loop socket))) (settings (%socket-settings socket)))
    (when (or (settings-read-timeout settings) (settings-write-timeout settings))
      (set-timeouts socket (settings-read-timeout settings) (settings-write-timeout settings)))
    (begin-use socket)
    (if (settings-incoming settings)
        (incf (program-incoming program))
        (incf (program-outgoing program)))))

(defun open-connection (socket byte-channel server-name)
  "Make SOCKET read and write BYTE-CHANNEL, which is connected, with TLS if its settings require it.
If BYTE-CHANNEL cannot become a connection, close it and signal SOCKET-ERROR or TLS-ERROR."
  (let* ((loop (handle-loop socket))
         (settings (%socket-settings socket))
         (tls (settings-tls settings))
         (made nil))
    (unwind-protect
         (let ((byte-channel (if tls
                                 (loop:make-tls-byte-channel loop byte-channel tls
                                                     (if (settings-incoming settings)
                                                         :server :client)
                                                     :server-name server-name)
                                 byte-channel)))
           (setf (%socket-connection socket)
                 (loop:make-connection loop byte-channel **socket-handler** :user socket
                                  :max-unsent-octets (settings-max-unsent settings))
                 made t))
      (unless made (loop:close-byte-channel byte-channel)))
    (when (%socket-paused socket) (loop:stop-reading (%socket-connection socket)))
    (when (and tls (not (settings-incoming settings)))
      (loop:begin-handshake (%socket-connection socket)))
    (let ((early (shiftf (%socket-early socket) nil)))
      (when early
        (append-octets (loop:connection-output (%socket-connection socket)) (buffer-octets early)
                       :start (buffer-start early) :end (buffer-end early)))))
  nil)

(defun leave-socket (socket)
  "Close SOCKET for its user."
  (let* ((loop (handle-loop socket))
         (program (loop-program loop))
         (timeouts (%socket-timeouts socket)))
    (setf (%socket-closed socket) t
          (%socket-timeouts socket) nil)
    (if (settings-incoming (%socket-settings socket))
        (decf (program-incoming program))
        (decf (program-outgoing program)))
    (when timeouts
      (loop:stop-timer loop (timeouts-read-timer timeouts))
      (loop:stop-timer loop (timeouts-write-timer timeouts)))))

(defun tell-event (handle condition)
  "Call the event callback of HANDLE, a socket, with CONDITION; if HANDLE has no such callback, log
CONDITION."
  (let ((event-cb (settings-event-cb (%socket-settings handle))))
    (when (typep condition 'socket-error) (setf (loop:socket-error-owner condition) handle))
    (cond (event-cb (with-callback (handle nil) (funcall event-cb condition)))
          ((typep condition 'socket-eof))
          (t (log-event :info :socket-failed :socket handle :reason (princ-to-string condition))))))

(defun close-socket (socket &key force)
  "Close SOCKET after its output is sent; if FORCE is true, drop the output. If the peer receives
none of the output for two seconds, the rest is lost. Output of a socket that is not yet connected
waits for the connection, and is lost if that fails. The event callback of SOCKET is not called.
Closing again does nothing. From any thread."
  (let ((loop (handle-loop socket)))
    (loop:with-baton (loop) (close-now socket force)
      (post loop (lambda () (close-now socket force))))
    nil))

(defun close-now (socket force)
  (unless (%socket-closed socket) (leave-socket socket))
  (let ((connection (%socket-connection socket)))
    (cond (connection (loop:close-connection connection :abort force))
          ((or force (null (%socket-early socket))) ; else SOCKET-CONNECTED sends that and closes
           (setf (%socket-early socket) nil)
           (end-use socket)))))

(defmethod cancel ((socket socket) &optional text)
  (declare (ignore text))
  (close-socket socket :force t))

(defmethod call-with-restarts ((socket socket) function)
  (restart-case (funcall function)
    (close-socket ()
      :report "Leave the callback and close its socket."
      (close-socket socket :force t))))

;;; Output

(defun output-octets (data &optional (start 0) end)
  "DATA of a user, a string or a sequence of integers, from START to END as OCTETS."
  (typecase data
    (string (string-octets (subseq data start end)))
    (sequence (coerce (subseq data start end) 'octets))
    (t (misuse "Give octets, a string or another sequence of octets, not ~S." data))))

(define-hot write-now ((socket socket) (octets octets) (start index) (end index)) boolean
  "Append the octets to SOCKET's output. Return true if SOCKET is ready for more."
  (let ((connection (%socket-connection socket)) (settings (%socket-settings socket)))
    (cond ((%socket-closed socket) nil)
          (t (append-octets (if connection
                                (loop:connection-output connection)
                                (early-output socket))
                            octets :start start :end end)
             (when (or (settings-write-cb settings) (%socket-timeouts socket))
               (await-output socket))
             (or (<= (the index (socket-unsent-octets socket)) (settings-high-water settings))
                 (progn (setf (%socket-choked socket) t)
                        (await-output socket)
                        nil))))))

(defun early-output (socket)
  (or (%socket-early socket) (setf (%socket-early socket) (make-buffer :size 64))))

(defun await-output (socket)
  "Note that SOCKET waits until its output is sent, and start its time-out. At the end of each turn
in which output was sent, SOCKET is checked."
  (unless (%socket-awaits socket)
    (setf (%socket-awaits socket) t)
    (let ((timeouts (%socket-timeouts socket)))
      (when (and timeouts (timeouts-write-timer timeouts))
        (let ((loop (handle-loop socket)))
          (setf (timeouts-written-at timeouts) (loop:event-loop-now loop))
          (loop:start-timer loop (timeouts-write-timer timeouts)
                            (time-after (timeouts-write-ns timeouts)
                                        (loop:event-loop-now loop)))))))
  nil)

(define-hot write-socket-data ((socket socket) data &key (start index 0) (end (or null index))
                               (read-cb callback) (write-cb callback) (event-cb callback)
                               (force t))
    boolean
  "Send DATA, or its part from START to END, to SOCKET's peer, at the end of the loop's turn, after
all earlier output. DATA is octets (the fastest), a string, which is sent as UTF-8, or another
sequence of octets. DATA may be changed afterwards. Until SOCKET is connected, DATA waits; once
SOCKET is closed, DATA is lost. READ-CB, WRITE-CB and EVENT-CB, if given, replace SOCKET's
callbacks. FORCE has no effect. Return true if SOCKET is ready for more; false if it is closed, or
more of its output is unsent than its high-water mark: then it is best to wait for its drain
callback. From any thread; on a thread that does not run the loop, return true if SOCKET was not
closed."
  (declare (ignore force))
  (unless (typep data 'octets) (setf data (output-octets data start end) start 0 end nil))
  (let* ((octets (the octets data))
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
  "Replace those callbacks of SOCKET for which the argument is not nil."
  (let* ((settings (setf (%socket-settings socket)
                         (copy-socket-settings (%socket-settings socket))))
         (stream (settings-stream settings)))
    (when read-cb
      (setf (settings-read-cb settings) (if stream (funcall stream read-cb) read-cb)))
    (when write-cb (setf (settings-write-cb settings) write-cb))
    (when event-cb (setf (settings-event-cb settings) event-cb))))

;;; Input

(defun disable-socket (socket &key read)
  "If READ is true, stop reading SOCKET until ENABLE-SOCKET is called. Octets that the peer then
sends wait in the system's buffers; once these are full, the peer cannot send. On its loop."
  (let ((connection (%socket-connection socket)))
    (when read
      (setf (%socket-paused socket) t)
      (when connection (loop:stop-reading connection)))
    nil))

(defun enable-socket (socket &key read)
  "If READ is true, resume reading from SOCKET. On its loop."
  (let ((connection (%socket-connection socket)))
    (when read
      (setf (%socket-paused socket) nil)
      (when (and connection (not (%socket-closed socket))) (loop:start-reading connection)))
    nil))

;;; Time-outs

(defun set-socket-timeouts (socket read-seconds write-seconds)
  "Set the time-outs of SOCKET: when no octets have arrived for READ-SECONDS, a real, or the peer
has taken no waiting output for WRITE-SECONDS, close SOCKET and call its event callback with a
SOCKET-TIMEOUT. If an argument is nil, or not positive, that time-out is off. Signal SOCKET-CLOSED
if SOCKET is closed. On its loop."
  (when (%socket-closed socket)
    (error 'socket-closed :owner socket :operation "set the time-outs of" :reason "it is closed"))
  (set-timeouts socket read-seconds write-seconds))

(defun set-timeouts (socket read-seconds write-seconds)
  "See SET-SOCKET-TIMEOUTS."
  (flet ((ns (seconds)
           (if (and seconds (plusp seconds)) (seconds-ns seconds) 0)))
    (let* ((loop (handle-loop socket))
           (now (loop:event-loop-now loop))
           (read-ns (ns read-seconds))
           (write-ns (ns write-seconds))
           (old (%socket-timeouts socket))
           (read-timer (and (plusp read-ns) (make-timer #'check-reading socket)))
           (write-timer (and (plusp write-ns) (make-timer #'check-writing socket))))
      (when old
        (loop:stop-timer loop (timeouts-read-timer old))
        (loop:stop-timer loop (timeouts-write-timer old)))
      (setf (%socket-timeouts socket)
            (and (or read-timer write-timer)
                 (make-timeouts :read-timer read-timer :read-ns read-ns :read-at now
                                :write-timer write-timer :write-ns write-ns :written-at now)))
      (when read-timer (loop:start-timer loop read-timer (time-after read-ns now)))
      ;; while a look is due, later output does not start the timer
      (when (and write-timer
                 (or (%socket-awaits socket) (plusp (socket-unsent-octets socket))))
        (setf (%socket-awaits socket) nil)
        (await-output socket))
      nil)))

(defun check-reading (socket)
  "Check the time-out for reading, because its timer has run."
  (let ((timeouts (%socket-timeouts socket)))
    (check-time socket (timeouts-read-timer timeouts)
                (time-after (timeouts-read-ns timeouts) (timeouts-read-at timeouts))
                "nothing was received for too long")))

(defun check-writing (socket)
  "Check the time-out for writing, because its timer has run."
  (let ((timeouts (%socket-timeouts socket)))
    (when (%socket-awaits socket)
      (check-time socket (timeouts-write-timer timeouts)
                  (time-after (timeouts-write-ns timeouts) (timeouts-written-at timeouts))
                  "the peer takes nothing"))))

(defun check-time (socket timer end-ns text)
  "Start TIMER, which has run, again for the time END-NS, or close SOCKET if END-NS is past."
  (let ((loop (handle-loop socket)))
    (cond ((< (loop:event-loop-now loop) end-ns)
           (loop:start-timer loop timer end-ns))
          (t (close-now socket t)
             (tell-event socket (make-condition 'socket-timeout :reason text))))))
