;;;; Connecting to an address without blocking the loop. The addresses of a list are tried in order:
;;;; the next one as soon as an attempt fails or has taken a quarter of a second. So several
;;;; attempts may be under way. The two families of addresses alternate (RFC 8305 sections 4 and 5).
;;;; The first address that accepts is used, and the other attempts are ended. The owner is called
;;;; exactly once, on the loop. CONNECT-TO looks a target up first.
;;;;
;;;; Either one time limit is for everything, including the look-up, or each attempt has its own
;;;; limit (LIMIT-EACH); then every address is tried, even after many that do not answer, as in
;;;; gRFCs A61 and A62. Attempts begin one after the other, so the time of the oldest is over first.
;;;;
;;;; An owner that needs further steps before it can use a connection, such as a handshake, gets
;;;; each new connection as a candidate (ON-CANDIDATE). The attempt of such a connection counts as
;;;; under way until the owner reports that it has failed (CANDIDATE-FAILED), or chooses it
;;;; (END-CONNECTING).

(in-package #:clgrpc.loop)

(defconstant +connecting-delay-ns+ 250000000
  "The default time between the beginnings of two attempts (RFC 8305 section 8).")

(defstruct (connector (:include source) (:constructor %make-connector) (:copier nil))
  "An attempt to connect to one of several addresses."
  (name "" :type string)                ; the name of the target, for people
  (on-done nil :type function)          ; (byte-channel condition), one of them nil
  (on-progress nil :type (or null function)) ; (event &rest plist)
  (on-candidate nil :type (or null function)) ; (byte-channel)
  (untried '() :type list)              ; addresses that were not tried yet
  (connectings '() :type list)          ; attempts under way
  (candidates '() :type list) ; candidates of the owner: (peer . due-ns), newest first
  (each nil :type boolean)              ; TIMEOUT-NS is for each attempt, not for all
  (timeout-ns 0 :type nanoseconds)      ; the time limit
  (end-ns 0 :type nanoseconds)          ; the end of the time limit for everything, if there is one
  (failures '() :type list)             ; texts of the failures, newest first
  (failure-class 'connect-error :type symbol) ; the condition class of the last failure
  ;; the time after the beginning of an attempt at which the next begins
  (delay-ns +connecting-delay-ns+ :type nanoseconds)
  ;; when the timer rings, the time of all attempts, or of one, is over
  (deadline nil :type (or null timer))
  (delay nil :type (or null timer))     ; when the timer rings, the next attempt begins
  (done nil :type boolean))             ; ON-DONE has been called

(declaim (sb-ext:freeze-type connector))

(defstruct (connecting (:include source) (:constructor %make-connecting) (:copier nil))
  "An attempt of a connector to connect to one address."
  (connector nil :type connector)       ; the connector to which the attempt belongs
  (address "" :type string)             ; the address as text
  (due-ns 0 :type nanoseconds)          ; when the time of the attempt is up
  (socket -1 :type fixnum))             ; the descriptor that is being connected; -1 once given up

(declaim (sb-ext:freeze-type connecting))

(defmethod interest ((connecting connecting))
  +writable+)

(defmethod print-object ((connector connector) stream)
  (print-unreadable-object (connector stream :type t)
    (write-string (connector-name connector) stream)))

(defun connect-addresses (loop name addresses timeout-ns on-done
                          &key on-progress on-candidate limit-each
                            (delay-ns +connecting-delay-ns+))
  "Connect to one of ADDRESSES, the kernel's addresses of NAME, a text, within TIMEOUT-NS
nanoseconds; if LIMIT-EACH is true, each attempt has this limit. ON-DONE is called on LOOP exactly
once: with a byte channel and nil, or with nil and a CONNECT-ERROR. If LOOP runs this function, that
call comes after its return. ON-PROGRESS is called on LOOP with each event: (:attempt :address text)
for an attempt, and (:attempt-failed :address text :reason text) for one that fails. ON-CANDIDATE is
called on LOOP with the byte channel of each new connection, and owns that byte channel. With
ON-CANDIDATE, ON-DONE is called only with conditions. The next attempt begins DELAY-NS nanoseconds
after the previous one, or when the previous one fails. Return the connector. Signal MISUSE if LOOP
has stopped. From any thread."
  (let ((connector (%make-connector
                    :loop loop :name name :on-done on-done :on-progress on-progress
                    :on-candidate on-candidate :delay-ns delay-ns
                    :each (and limit-each t) :timeout-ns timeout-ns
                    :untried (os:interleave-families addresses)
                    :on-release (lambda (connector)
                                  (note-failure connector "the event loop has stopped" nil)
                                  (fail-connector connector)))))
    (setf (connector-deadline connector) (make-timer #'connecting-timed-out connector)
          (connector-delay connector) (make-timer #'try-next-address connector))
    (unless (post loop (lambda () (start-connector connector)))
      (misuse "~A has stopped; it cannot connect." loop))
    connector))

(defun connect-to (loop target timeout-ns on-done)
  "Look up the addresses of TARGET, an object that PARSE-TARGET returned or its text, and connect to
one of them as CONNECT-ADDRESSES does. Look-up and connecting may take TIMEOUT-NS nanoseconds.
Signal MISUSE if TARGET is not a target, or LOOP has stopped. From any thread."
  (declare (type function on-done))
  (let ((target (if (stringp target) (parse-target target) target)))
    (if (target-addresses target)
        (connect-addresses loop (target-text target) (target-addresses target) timeout-ns on-done)
        (let ((end (time-after timeout-ns (read-clock loop))))
          (lookup loop target timeout-ns
                  (lambda (addresses condition)
                    (if condition
                        (funcall on-done nil condition)
                        (connect-addresses loop (target-text target) addresses
                                           (max 0 (- end (event-loop-now loop))) on-done))))))))

(defun start-connector (connector)
  (unless (connector-done connector)
    (let ((loop (connector-loop connector)))
      (push connector (event-loop-unconnected loop))
      (setf (connector-end-ns connector) (due-from-now connector))
      (start-timer loop (connector-deadline connector) (connector-end-ns connector))
      (try-next-address connector))))

(defun due-from-now (connector)
  "Return the time by which a step that begins now must have ended, if it may take all of
CONNECTOR's time."
  (time-after (connector-timeout-ns connector) (event-loop-now (connector-loop connector))))

(defun connecting-end-ns (connector)
  "Return the time by which an attempt of CONNECTOR that begins now must have ended."
  (if (connector-each connector) (due-from-now connector) (connector-end-ns connector)))

(defun tell-progress (connector event &rest plist)
  (when (connector-on-progress connector)
    (guarding (:connect-function-error :connector connector)
      (apply (connector-on-progress connector) event plist))))

;;; Attempts

(defun try-next-address (connector)
  "Begin to connect to the next address that can be tried; fail if no address is left and no attempt
is under way."
  (let ((loop (connector-loop connector)))
    (stop-timer loop (connector-delay connector))
    (loop while (connector-untried connector)
          until (begin-connecting connector (pop (connector-untried connector))))
    (cond ((connector-untried connector)
           (start-timer loop (connector-delay connector)
                        (+ (event-loop-now loop) (connector-delay-ns connector))))
          ((null (or (connector-connectings connector) (connector-candidates connector)))
           (fail-connector connector)))))

(defun note-failure (connector text address &optional (class 'connect-error))
  "Record TEXT as the reason of a failure of CLASS; add ADDRESS, a text or nil, to TEXT unless
ADDRESS is CONNECTOR's name."
  (setf (connector-failure-class connector) class)
  (push (if (or (null address) (string= address (connector-name connector)))
            text
            (format nil "~A (~A)" text address))
        (connector-failures connector))
  (tell-progress connector :attempt-failed :address address
                                              :reason (first (connector-failures connector))))

(defun begin-connecting (connector address)
  "Open a socket, begin to connect it to ADDRESS and watch it. Return true; after a failure note the
reason and return nil."
  (let* ((text (os:address-text address))
         (family (os:address-family address))
         (network (event-loop-network (connector-loop connector)))
         (socket (funcall (network-open network) family))
         (result (if (os:failed-p socket)
                     socket
                     (funcall (network-connect network) socket address))))
    (when (or (not (os:failed-p result)) (= result (- os:+einprogress+)))
      (let ((connecting (%make-connecting :loop (connector-loop connector) :connector connector
                                          :address text :socket socket :on-event #'connecting-event
                                          :due-ns (connecting-end-ns connector)
                                          ;; the connector gives the byte channel up
                                          :on-release #'identity)))
        (setf result (add-source connecting socket))
        (unless (os:failed-p result)
          (push connecting (connector-connectings connector))
          (tell-progress connector :attempt :address text)
          (return-from begin-connecting t))))
    (unless (os:failed-p socket) (funcall (network-close network) socket))
    (note-errno connector result text)
    nil))

(defun note-errno (connector result address)
  (note-failure connector (os:errno-text result) address
                (if (= result (- os:+econnrefused+)) 'socket-refused 'connect-error)))

(defun leave-connecting (connecting)
  "Remove CONNECTING from the attempts under way. Return its socket."
  (let ((connector (connecting-connector connecting)))
    (setf (connector-connectings connector) (delete connecting (connector-connectings connector)))
    (remove-source connecting)
    (connecting-socket connecting)))

(defun connecting-event (connecting flags)
  "Handle the event that the socket of CONNECTING is connected, or has failed to connect."
  (when (logtest flags (logior +writable+ +failed+))
    (let* ((connector (connecting-connector connecting))
           (network (event-loop-network (connector-loop connector)))
           (errno (funcall (network-failure network) (connecting-socket connecting)))
           (socket (leave-connecting connecting)))
      (cond ((zerop errno)
             (let ((byte-channel (funcall (network-byte-channel network) socket
                                          (connecting-address connecting))))
               (if (connector-on-candidate connector)
                   (add-candidate connector byte-channel (connecting-due-ns connecting))
                   (end-connector connector byte-channel nil))))
            (t (funcall (network-close network) socket)
               (note-errno connector (- (abs errno)) (connecting-address connecting))
               (try-next-address connector))))))

;;; Candidates

(defun add-candidate (connector byte-channel due-ns)
  "Pass BYTE-CHANNEL, which is connected and has the time limit DUE-NS, to the owner of CONNECTOR."
  (push (cons (byte-channel-peer byte-channel) due-ns) (connector-candidates connector))
  (let ((failure (nth-value 1 (guarding (:connect-function-error :connector connector)
                                (funcall (connector-on-candidate connector) byte-channel)))))
    (when failure
      (close-unowned (connector-loop connector) byte-channel failure)
      (candidate-failed connector (byte-channel-peer byte-channel) (bounded-text failure)))))

(defun candidate-failed (connector peer text)
  "Note that the connection to PEER, a candidate of CONNECTOR, has ended because of TEXT. Continue
with the other addresses. On the loop."
  (unless (connector-done connector)
    (setf (connector-candidates connector)
          (remove peer (connector-candidates connector) :key #'car :test #'string= :count 1))
    (note-failure connector text peer)
    (try-next-address connector)))

;;; The end

(defun give-up-late (connector)
  "End the attempts of CONNECTOR whose time is over, and stop waiting for candidates whose time is
over; the owner still owns such a candidate."
  (let* ((loop (connector-loop connector))
         (now (event-loop-now loop)))
    (flet ((late-p (due-ns) (<= due-ns now))
           (note (peer) (note-failure connector "no answer in time" peer 'connect-timeout)))
      (dolist (connecting (remove-if-not #'late-p (connector-connectings connector)
                                         :key #'connecting-due-ns))
        (funcall (network-close (event-loop-network loop)) (leave-connecting connecting))
        (note (connecting-address connecting)))
      (dolist (candidate (remove-if-not #'late-p (connector-candidates connector) :key #'cdr))
        (setf (connector-candidates connector)
              (delete candidate (connector-candidates connector)))
        (note (car candidate))))))

(defun connecting-timed-out (connector)
  "Handle a timer: the time of an attempt of CONNECTOR, or of CONNECTOR as a whole, may be over.
While other attempts are under way, the next attempt begins at its usual time."
  (give-up-late connector)
  (unless (connector-each connector) (setf (connector-untried connector) '()))
  (unless (or (connector-connectings connector) (connector-candidates connector))
    (try-next-address connector))
  (unless (connector-done connector)
    (start-timer (connector-loop connector) (connector-deadline connector)
                 (reduce #'min
                         (append (mapcar #'connecting-due-ns (connector-connectings connector))
                                 (mapcar #'cdr (connector-candidates connector)))))))

(defun end-connecting (connector)
  "End the attempts of CONNECTOR that are under way, except those of candidates, which belong to
their owner. The functions of these attempts are not called afterwards. On the loop."
  (unless (connector-done connector)
    (let ((loop (connector-loop connector)))
      (setf (connector-done connector) t
            (connector-untried connector) '()
            (event-loop-unconnected loop) (delete connector (event-loop-unconnected loop)))
      (stop-timer loop (connector-deadline connector))
      (stop-timer loop (connector-delay connector))
      (loop while (connector-connectings connector)
            do (funcall (network-close (event-loop-network loop))
                        (leave-connecting (first (connector-connectings connector)))))))
  nil)

(defun end-connector (connector byte-channel condition)
  "Pass BYTE-CHANNEL or CONDITION to the owner of CONNECTOR."
  (let ((loop (connector-loop connector)))
    (end-connecting connector)
    (let ((failure (nth-value 1 (guarding (:connect-function-error :connector connector)
                                  (funcall (connector-on-done connector) byte-channel condition)))))
      (when (and failure byte-channel) (close-unowned loop byte-channel failure)))))

(defconstant +told-failures+ 8
  "The maximum number of failures that the reason of a CONNECT-ERROR names. It is limited because a
target may have very many addresses.")

(defun fail-connector (connector)
  (unless (connector-done connector)
    (let* ((failures (remove-duplicates (reverse (connector-failures connector)) :test #'equal))
           (told (min +told-failures+ (length failures)))
           (more (- (length failures) told)))
      (end-connector connector nil
                     (make-condition
                      (connector-failure-class connector)
                      :operation "connect to"
                      :address (connector-name connector)
                      :reason (format nil "~{~A~^; ~}~[~:;~:*; and ~D more failures~]"
                                      (subseq failures 0 told) more))))))
