;;;; Listeners. A listener runs on the first of its loops, and gives each connection that it accepts
;;;; to the loop with the fewest connections. If the process is out of descriptors or memory, or
;;;; cannot accept for another reason, the listener pauses instead of trying again and again.
;;;; TCP_NODELAY is set on the listening socket; accepted sockets inherit it.

(in-package #:clgrpc.loop)

(defconstant +accepts-per-turn+ 64
  "The maximum number of connections that a listener accepts in one turn of the loop.")
(defconstant +pause-ns+ 100000000
  "The time in nanoseconds for which a listener pauses when it cannot accept connections.")
(defconstant +short-pause-ns+ 5000000
  "The time in nanoseconds for which a listener that lacks descriptors pauses when some descriptors
are about to be closed.")
(defconstant +warning-interval-ns+ +ns-per-second+
  "The minimum time in nanoseconds between two warnings of a listener, however many connections it
must refuse.")
(defconstant +accepts-at-the-end+ 1024
  "A listener that is being closed accepts at most this number times +ACCEPTS-PER-TURN+ connections,
which is more than the longest backlog.")

(defstruct (listener (:include source) (:constructor %make-listener) (:copier nil))
  "See LISTEN-ON."
  (socket -1 :type fixnum)              ; the descriptor; -1 once closed
  (address "" :type string)             ; the address as text, with its actual port
  (file nil :type list)                 ; the file of a unix socket, see LISTENING-FILE
  (loops '() :type list)                ; the loops that get the connections
  (on-accept nil :type function)        ; a function of (loop byte-channel peer)
  (on-full nil :type function)          ; (): true if it has closed descriptors
  (max-connections 0 :type index)       ; the limit for all LOOPS together
  (pause nil :type (or null timer))     ; ends the pause, during which it is pending
  (quiet-until 0 :type nanoseconds)     ; no warning is logged before
  (peer (make-octets os:+address-octets+) :type octets)) ; the peer of the last connection accepted

(declaim (sb-ext:freeze-type listener))

(defmethod interest ((listener listener))
  (if (timer-pending-p (listener-pause listener)) 0 +readable+))

(document-functions
  listener-address "The address on which LISTENER listens, as text, with the actual port.")

(define-printer (listener listener)
  "~A~:[~; closed~]" (listener-address listener) (minusp (listener-socket listener)))

(defun listener-network (listener)
  (event-loop-network (listener-loop listener)))

;;; Opening

(defun listen-failed (address result)
  (if (stringp result)
      (error 'socket-error :operation "listen on" :address address :reason result)
      (error (errno-condition result "listen on" address))))

(defun target-listening-address (target)
  "The single address of TARGET, looked up if necessary."
  (let ((text (target-text target)))
    (multiple-value-bind (addresses failure)
        (if (target-addresses target)
            (target-addresses target)
            (find-addresses (target-host target) (target-port target)))
      (unless addresses (listen-failed text (or failure "no such host")))
      (first addresses))))

(defun open-listening-socket (target address options)
  "Return a socket that listens on ADDRESS, the address of TARGET."
  (let ((result (funcall (network-listen (world-network *world*)) address options)))
    (when (os:failed-p result) (listen-failed (target-text target) result))
    result))

(defun listen-on (text options loops on-accept &key (on-full (constantly nil)))
  "Listen on the target TEXT (see target.lisp) and return the listener. Port 0 means any free port.
If TEXT has several addresses, the first is used. OPTIONS has the backlog, the limit of connections
and the file mode of a unix socket. The file of a unix socket that a dead server has left is
replaced. Each new connection goes to the loop of LOOPS that has the fewest connections. (ON-ACCEPT
loop byte-channel peer) is called on that loop. BYTE-CHANNEL is the connection's byte channel, which
belongs to ON-ACCEPT afterwards; PEER is the peer's address as text. (ON-FULL) is called on the
first of LOOPS when the process can have no more descriptors; it must return true if it has closed
some. Signal MISUSE if TEXT is not a target, and SOCKET-ERROR if the system refuses to listen on the
address. From any thread; connections are accepted while the first of LOOPS runs."
  (let* ((target (parse-target text :smallest-port 0))
         (address (target-listening-address target))
         (socket (open-listening-socket target address options))
         (listener (%make-listener
                    :loop (first loops) :socket socket :loops loops :on-accept on-accept
                    :on-full on-full
                    :address (os:address-text
                              (funcall (network-local-address (world-network *world*)) socket))
                    :file (listening-file address)
                    :max-connections (options-max-connections options)
                    :on-release #'release-listener
                    :on-event (lambda (listener flags)
                                (declare (ignore flags))
                                (accept-connections listener)))))
    (setf (listener-pause listener) (make-timer #'accept-connections listener))
    (unless (post (first loops) (lambda () (add-listener listener)))
      (close-listening-socket listener socket)
      (misuse "~A has stopped; it cannot listen." (first loops)))
    listener))

(defun add-listener (listener)
  (unless (minusp (listener-socket listener))
    (let ((result (add-source listener (listener-socket listener))))
      (when (os:failed-p result)
        (log-event :error :listener-failed :listener listener :reason (os:errno-text result))
        (release-listener listener)))))

;;; Closing

(defun release-listener (listener)
  (stop-timer (listener-loop listener) (listener-pause listener))
  (remove-source listener)
  (let ((socket (shiftf (listener-socket listener) -1)))
    (unless (minusp socket) (close-listening-socket listener socket))))

(defun close-listening-socket (listener socket)
  "Close SOCKET, the socket of LISTENER, and remove the file of the socket if it has one."
  (remove-listening-file (listener-file listener))
  (funcall (network-close (listener-network listener)) socket))

(defun close-listener (listener)
  "Close LISTENER. LISTENER still accepts the connections that already wait, so that their peers get
an answer and not a reset. If other processes listen on LISTENER's port too, connections that arrive
meanwhile go to those processes without a reset. LISTENER is closed on its loop: at once if the
caller runs on that loop, otherwise soon. Closing again does nothing. From any thread."
  (let ((loop (listener-loop listener)))
    (flet ((end ()
             (unless (minusp (listener-socket listener))
               (funcall (network-retire (listener-network listener)) (listener-socket listener))
               (loop repeat +accepts-at-the-end+ while (accept-some listener)))
             (release-listener listener)))
      (if (in-event-loop-p loop)
          (end)
          ;; a loop that has stopped has closed LISTENER
          (post loop #'end)))
    nil))

;;; Accepting

(defun least-loaded (loops)
  "Return two values: the loop with the fewest connections among LOOPS, and the number of
connections of all LOOPS."
  (let ((best (first loops)) (fewest most-positive-fixnum) (total 0))
    (declare (type fixnum fewest total))
    (dolist (loop loops (values best total))
      (let ((load (event-loop-connections loop)))
        (incf total load)
        (when (< load fewest)
          (setf best loop
                fewest load))))))

(defun warn-of (listener event &rest plist)
  "Log the warning EVENT of LISTENER, unless LISTENER has logged a warning within the last
+WARNING-INTERVAL-NS+."
  (let ((now (event-loop-now (listener-loop listener))))
    (when (<= (listener-quiet-until listener) now)
      (setf (listener-quiet-until listener) (+ now +warning-interval-ns+))
      (apply #'log-event :warning event :listener listener plist))))

(defun hand-to-owner (listener loop byte-channel)
  "Call LISTENER's ON-ACCEPT. On LOOP."
  (let ((failure (nth-value 1 (guarding (:accept-function-error :listener listener)
                                (funcall (listener-on-accept listener) loop byte-channel
                                         (byte-channel-peer byte-channel))))))
    (when failure (close-unowned loop byte-channel failure))))

(defun peer-text (listener)
  "The address of the peer that LISTENER has accepted last, as text. Clients on unix sockets have no
address; for them the text is the listener's address."
  (let ((peer (listener-peer listener)))
    (if (= os:+af-unix+ (os:address-family peer))
        (listener-address listener)
        (os:address-text peer))))

(defun deal-connection (listener socket)
  "Pass SOCKET, which was accepted just before, to one of LISTENER's loops."
  (multiple-value-bind (loop total) (least-loaded (listener-loops listener))
    (cond ((>= total (listener-max-connections listener))
           (warn-of listener :too-many-connections :connections total)
           (funcall (network-close (listener-network listener)) socket))
          (t (let ((byte-channel (funcall (network-byte-channel (listener-network listener))
                                          socket (peer-text listener))))
               (count-byte-channel byte-channel loop)
               (cond ((in-event-loop-p loop) (hand-to-owner listener loop byte-channel))
                     ((post loop (lambda () (hand-to-owner listener loop byte-channel))))
                     (t (close-byte-channel byte-channel))))))))

(defun end-lingering (loops)
  "End the lingering of all connections of LOOPS; return true if any connection lingered."
  (loop for loop in loops
        unless (zerop (event-loop-lingering loop))
          do (let ((loop loop))
               (post loop (lambda () (bound-lingering loop 0))))
          and collect loop))

(defun pause-listener (listener result)
  (warn-of listener :cannot-accept :reason (os:errno-text result))
  (let* ((loop (listener-loop listener))
         (room (and (member (- result) (list os:+emfile+ os:+enfile+))
                    (or (end-lingering (listener-loops listener))
                        (guarding (:full-function-error :listener listener)
                          (funcall (listener-on-full listener)))))))
    (start-timer loop (listener-pause listener)
                 (+ (event-loop-now loop) (if room +short-pause-ns+ +pause-ns+)))
    nil))

(defun accept-connections (listener)
  (when (accept-some listener)
    (defer (listener-loop listener) #'accept-connections listener)))

(defparameter *faults-of-one* (list os:+econnaborted+ os:+eproto+ os:+enoprotoopt+ os:+enetdown+
                                    os:+enetunreach+ os:+ehostdown+ os:+ehostunreach+ os:+enonet+
                                    os:+eopnotsupp+ os:+eperm+)
  "Errors of accept(2) that concern only the connection that the call has removed from the queue.
After such an error the next call may succeed.")

(defun accept-some (listener)
  "Accept connections that wait on LISTENER, up to the limit of a turn. Return true if more
connections may wait. If all attempts fail, even with errors of single connections, the listener
pauses."
  (let ((good nil) (result 0))
    (dotimes (i +accepts-per-turn+ (or good (pause-listener listener result)))
      (when (minusp (listener-socket listener)) (return))
      (setf result (funcall (network-accept (listener-network listener))
                            (listener-socket listener) (listener-peer listener)))
      (cond ((not (os:failed-p result))
             (setf good t)
             (deal-connection listener result))
            ((= result (- os:+eagain+)) (return))
            ((member (- result) *faults-of-one*)
             (log-event :debug :accept-failed :listener listener :reason (os:errno-text result)))
            (t (return (pause-listener listener result)))))))
