;;;; The console object. As the :observer of servers and channels it keeps slow and failed calls, in
;;;; a sample set for each loop, and counts in its metrics. The console gets the events of the log
;;;; until it is garbage.

(in-package #:clgrpc.console)

(defconstant +token-octets+ 16 "The number of random octets from which a token is made.")

(defclass console ()
  ((metrics :initarg :metrics :reader console-metrics) ; the metrics whose counts it shows
   (token :initarg :token :reader console-token) ; a string that viewers must have, or nil
   ;; distinguishes the console's cookie from the cookies of other consoles on the host
   (name :initform (random-hex 4) :reader console-name)
   (path :initarg :path :reader console-path) ; the path of its page, which ends with a slash
   (remote :initarg :remote :reader console-remote-p) ; true if other machines may use it
   (exemplar :initarg :exemplar :reader console-exemplar) ; see MAKE-CONSOLE
   (tail :initform (make-tail) :reader console-tail) ; the tail of the log
   ;; guards the other slots
   (lock :initform (sb-thread:make-mutex :name "clgrpc console") :reader console-lock)
   ;; an alist from weak loops, or nil, to SAMPLE-SETs
   (sample-sets :initform '() :accessor console-sample-sets)
   (pages :initform '() :accessor console-pages) ; lists of a name, a title and a function
   (viewers :initform '() :accessor console-viewers) ; the present VIEWERs
   ;; the thread that makes updates while there are viewers
   (thread :initform nil :accessor console-thread)
   ;; for it
   (semaphore :initform (sb-thread:make-semaphore :name "clgrpc console")
              :reader console-semaphore)
   ;; the UPDATE-STREAM of the last minutes, or nil; its thread's
   (update-stream :initform nil :accessor console-update-stream)
   (hour :initform (make-hour) :reader console-hour)) ; see hour.lisp
  (:documentation "The data of a console in the browser: see MAKE-CONSOLE."))

(defmethod print-object ((console console) stream)
  (print-unreadable-object (console stream :type t :identity t)
    (format stream "~A, ~D viewer~:P" (console-path console) (length (console-viewers console)))))

(defun random-hex (octets)
  "OCTETS random octets of the system as hexadecimal digits."
  (with-open-file (stream "/dev/urandom" :element-type '(unsigned-byte 8))
    (format nil "~(~{~2,'0X~}~)" (loop repeat octets collect (read-byte stream)))))

(defun check-path (path)
  (unless (and (stringp path)
               (plusp (length path))
               (every (lambda (char) (or (and (< (char-code char) 128) (alphanumericp char))
                                         (find char "/-_.")))
                      path)
               (char= #\/ (char path 0) (char path (1- (length path)))))
    (misuse "The path of a console has letters, digits and -_./, with a slash at both ends; it ~
             cannot be ~S."
            path))
  path)

(defun check-token (token)
  (unless (or (null token)
              (and (stringp token)
                   (<= 16 (length token) 256)
                   (every (lambda (char) (and (< (char-code char) 128)
                                              (or (alphanumericp char) (find char "-_."))))
                          token)))
    (misuse ":token of a console has 16 to 256 letters, digits and - _ .; nil makes a random one."))
  token)

(defun make-console (&key metrics exemplar (path "/console/") remote
                       (token (random-hex +token-octets+)))
  "Return a console, for :observer of START-SERVER, MAKE-CHANNEL and SERVER-CHANNEL. The console
shows, together, all servers and channels that have it as observer. CONSOLE-HANDLER makes the page
that shows it; CONSOLE-URL returns its address. The page shows the counts of METRICS, which
MAKE-METRICS returned; by default the console has its own metrics, see CONSOLE-METRICS. These
metrics count all that the console observes; the calls of a server or channel whose :observer has
both the console and METRICS are still counted once. EXEMPLAR, such as TRACE-EXEMPLAR, is a function
of a call that has ended, which returns an alist of strings to show with the call, or nil; it is
called on the call's loop and must not wait. PATH is the path of the page, with a slash at both
ends. Unless REMOTE is true, only this machine may use it. A request for the page must have TOKEN,
16 to 256 letters, digits and -_., random by default; nil means that any user of this machine may
use it. Signal MISUSE for a wrong argument, such as REMOTE without a TOKEN. From any thread."
  (unless (typep metrics '(or null metrics:metrics))
    (misuse ":metrics must be an object that MAKE-METRICS returned, not ~S." metrics))
  (unless (typep exemplar '(or symbol function))
    (misuse ":exemplar must be a function of a call, not ~S." exemplar))
  (when (and remote (null token))
    (misuse "A console that other machines may use needs a token."))
  (let ((console (make-instance 'console :metrics (or metrics (metrics:make-metrics))
                                :token (check-token token)
                                :path (check-path path) :remote (and remote t)
                                :exemplar exemplar)))
    (listen-to-log (console-tail console))
    console))

(document-functions
  console-metrics "The metrics whose counts CONSOLE shows. From any thread.")

(defun listen-to-log (tail)
  "Pass events of the log to TAIL until TAIL is garbage."
  (let ((pointer (sb-ext:make-weak-pointer tail)))
    (labels ((listener (level event &rest plist)
               (if-let ((tail (sb-ext:weak-pointer-value pointer)))
                 (add-event tail level event plist)
                 (remove-log-listener #'listener))))
      (add-log-listener #'listener))))

;;; Noting the metrics of the last hour

(defun look-if-due (console)
  "Read CONSOLE's metrics, unless they were read a short while ago for another loop."
  (let* ((hour (console-hour console))
         (now (monotonic-ns))
         (taken-ns (update-stream-taken-ns (hour-update-stream hour))))
    (when (or (zerop taken-ns)
              (<= (+ taken-ns (seconds-ns (floor +look-seconds+ 2))) now))
      (take-look hour (console-metrics console) now))))

(defun begin-looks (loop console)
  "Read CONSOLE's metrics at intervals, on a thread of LOOP's reserve, until CONSOLE is garbage or
LOOP has stopped. On LOOP."
  (let ((pointer (sb-ext:make-weak-pointer console)) (timer nil))
    (flet ((ring (pointer)
             (when-let ((console (sb-ext:weak-pointer-value pointer)))
               (loop:start-timer loop timer
                                 (+ (loop:event-loop-now loop) (seconds-ns +look-seconds+)))
               (loop:run-on-reserve (loop:event-loop-reserve loop)
                                    (lambda () (look-if-due console))))))
      (setf timer (loop:make-lasting-timer loop #'ring pointer))
      (ring pointer)))
  nil)

(defun ensure-looks (console loop)
  "Make sure that the last hour of LOOP, which CONSOLE observes, is kept."
  (when (and loop (not (loop:simulated-p)))
    (loop:post loop (lambda () (begin-looks loop console)))))

;;; Observing

(defun sample-set-of-loop (console loop)
  "The sample set of CONSOLE for LOOP or, if LOOP is nil, for threads without a loop."
  (sb-thread:with-mutex ((console-lock console))
    (flet ((its-loop (entry) (and (car entry) (sb-ext:weak-pointer-value (car entry)))))
      (setf (console-sample-sets console)
            (remove-if (lambda (entry) (and (car entry) (null (its-loop entry))))
                       (console-sample-sets console)))
      (or (cdr (find loop (console-sample-sets console) :key #'its-loop))
          (let ((sample-set (make-sample-set
                             :lock (if loop nil (sb-thread:make-mutex :name "clgrpc samples")))))
            (push (cons (and loop (sb-ext:make-weak-pointer loop)) sample-set)
                  (console-sample-sets console))
            sample-set)))))

(defun keeping-observer (console target loop)
  "An observer that keeps, for CONSOLE, calls of LOOP or, if LOOP is nil, of threads without a loop.
TARGET is the target of the calls' channel, or nil if they have no channel."
  (let* ((sample-set (sample-set-of-loop console loop))
         (lock (sample-set-lock sample-set))
         (exemplar (console-exemplar console)))
    (flet ((describe-call (call)
             (loop:guarding (:observer-error) (logs:call-plist call target exemplar))))
      (rpc:make-observer :trusted t
       :call-ended
       (if loop
           (lambda (call)
             (unless (metrics:plain-request-p call)
               (note-call sample-set call (eq :ok (call-status call)) (operate elapsed-ns call)
                          (loop:event-loop-now loop) #'describe-call)))
           (lambda (call)
             (let ((ns (operate elapsed-ns call)) (now (monotonic-ns)))
               ;; a thread does not wait for the lock: it is better to lose this call than to wait
               (sb-thread:with-mutex (lock :wait-p nil)
                 (note-call sample-set call (eq :ok (call-status call)) ns now
                            #'describe-call)))))))))

(defmethod rpc:check-observer ((source console))
  (list (console-metrics source) source))

(defmethod rpc:observer-for ((source console) &key target loop &allow-other-keys)
  (ensure-looks source loop)
  (keeping-observer source target loop))
