;;;; What goes wrong. Each fault is a function of a place and of how many seconds it may last; when
;;;; it returns all is well again but what users have to recover from.

(in-package #:clgrpc.tests.faults)

(defvar *faults* '() "Lists of a fault's name, what it needs (nil, :proxy, :disk or :cluster), its
function and what it does.")

(defmacro define-fault (name (place seconds &key needs) what &body body)
  "Define the fault NAME, a keyword; WHAT says what it does. It NEEDS nil, the :proxy, the :disk, or
a :cluster of several members."
  `(setf *faults* (append (remove ,name *faults* :key #'first)
                          (list (list ,name ,needs
                                      (lambda (,place ,seconds)
                                        (declare (ignorable ,seconds))
                                        ,@body)
                                      ,what)))))

(defparameter *process-faults*
  '((:node-killed
     "a node is killed (SIGKILL): it is no member any more within its lease and a second")
    (:node-stopped "a node is stopped (SIGSTOP) for longer than its lease, then goes on")
    (:worker-killed "a worker is killed, and another starts under its name")
    (:worker-stopped "a worker is stopped for longer than its session, then goes on")
    (:clock-jumps
     "the clock of a node or a worker jumps a minute ahead, as on a machine that has slept")
    (:time-of-day
     "the time of day is eight days ahead or late at a node for some seconds"))
  "What goes wrong with nodes and workers (workflow.lisp), names and texts.")

(defun fault-names ()
  "The names of the faults, keywords."
  (append (mapcar #'first *faults*) (mapcar #'first *process-faults*)))

(defun possible-p (fault place)
  "True if FAULT, a row of *FAULTS*, can be at PLACE."
  (ecase (second fault)
    ((nil) t)
    (:proxy (place-proxy place))
    (:disk (place-mounted place))
    (:cluster (rest (place-stores place)))))

(defun call-while-stopped (function programs)
  "Call FUNCTION while PROGRAMS are stopped (SIGSTOP); they then go on as if nothing had been."
  (unwind-protect
       (progn
         (dolist (program programs) (support:signal-program program sb-unix:sigstop))
         (funcall function))
    (dolist (program programs) (support:signal-program program sb-unix:sigcont))))

(define-fault :killed (place seconds)
    "etcd is killed (SIGKILL), and starts again after a second"
  (mapc #'support:kill-program (place-programs place))
  (sleep (min 1 seconds))
  (begin-again place))

(define-fault :restarted (place seconds)
    "etcd ends in order (SIGTERM), and starts again"
  (mapc #'support:terminate-program (place-programs place))
  (begin-again place))

(define-fault :stopped (place seconds)
    "etcd is stopped (SIGSTOP) for ten seconds, then goes on"
  (call-while-stopped (lambda () (sleep (min 10 seconds))) (place-programs place)))

(define-fault :leader-killed (place seconds :needs :cluster)
    "the leader of etcd is killed; it starts again once another leads, and some seconds later"
  (let ((leader (await-leader place)))
    (support:kill-program (shared:store-program leader))
    (unwind-protect
         (progn (await-leader place leader)
                (sleep (min 3 seconds)))
      (shared:begin-store leader))))

(define-fault :leader-stopped (place seconds :needs :cluster)
    "the leader of etcd is stopped, and goes on when another leads, ten seconds later"
  (let ((leader (await-leader place)))
    (call-while-stopped (lambda ()
                          (await-leader place leader)
                          (sleep (min 10 seconds))
                          (note-former-leader place leader))
                        (list (shared:store-program leader)))))

(define-fault :full (place seconds :needs :disk)
    "the disk of etcd is full for some seconds; if that has ended etcd, it starts again"
  (let ((file (format nil "~Afull" (place-folder place))))
    (unwind-protect
         (progn (run-quietly "dd" "if=/dev/zero" (format nil "of=~A" file) "bs=64k")
                (sleep (min 5 seconds)))
      (uiop:delete-file-if-exists file)
      (dolist (store (place-stores place))
        (unless (sb-ext:process-alive-p (support:program-process (shared:store-program store)))
          (shared:begin-store store))))))

;;; Connections

(defun ask-proxies (place method path json)
  "Have the proxy of PLACE do METHOD of PATH, below that of each member, with JSON."
  (dolist (name (proxy-names place))
    (ask-proxy place method (format nil "/proxies/~A~A" name path) json)))

(defun set-proxy (place enabled)
  (ask-proxies place "POST" "" (format nil "{\"enabled\":~:[false~;true~]}" enabled)))

(defun call-with-toxic (function place type stream attributes)
  "Call FUNCTION while the proxies of PLACE do TYPE with STREAM, \"upstream\" or \"downstream\"."
  (ask-proxies place "POST" "/toxics"
               (format nil "{\"name\":\"~A\",\"type\":\"~A\",\"stream\":\"~A\",\"attributes\":~A}"
                       stream type stream attributes))
  (unwind-protect (funcall function)
    (ask-proxies place "DELETE" (format nil "/toxics/~A" stream) nil)))

(defmacro with-toxic ((place type stream attributes) &body body)
  `(call-with-toxic (lambda () ,@body) ,place ,type ,stream ,attributes))

(define-fault :cut (place seconds :needs :proxy)
    "all connections are cut, again and again, and none is taken for half a second each time"
  (loop repeat (max 1 (floor (min 5 seconds)))
        do (set-proxy place nil)
           (sleep 0.5)
           (set-proxy place t)
           (sleep 0.5)))

(defun hold-back (place stream seconds)
  "Have nothing come through STREAM of connections for SECONDS, then cut them."
  (with-toxic (place "timeout" stream "{\"timeout\":0}")
    (sleep seconds))
  (set-proxy place nil)
  (set-proxy place t))

(define-fault :silent (place seconds :needs :proxy)
    "connections stay, but no answers come through for some seconds; then they are cut"
  (hold-back place "downstream" (min 8 seconds)))

(define-fault :deaf (place seconds :needs :proxy)
    "connections stay, but no requests come through for some seconds; then they are cut"
  (hold-back place "upstream" (min 8 seconds)))

(define-fault :slow (place seconds :needs :proxy)
    "answers come 200 to 600 ms late"
  (with-toxic (place "latency" "downstream" "{\"latency\":400,\"jitter\":200}")
    (sleep (min 6 seconds))))

(define-fault :narrow (place seconds :needs :proxy)
    "connections carry 4 KB a second, in pieces"
  (with-toxic (place "bandwidth" "downstream" "{\"rate\":4}")
    (with-toxic (place "slicer" "upstream"
                 "{\"average_size\":20,\"size_variation\":10,\"delay\":500}")
      (sleep (min 5 seconds)))))

(define-fault :short (place seconds :needs :proxy)
    "each connection is cut once it has carried 2,000 octets"
  (with-toxic (place "limit_data" "downstream" "{\"bytes\":2000}")
    (sleep (min 3 seconds))))

(defun list-faults (stream)
  "Write the names of the faults and what they do to STREAM."
  (loop for (name needs nil what) in *faults*
        do (format stream "~(~15A~) ~A~@[ (needs the ~(~A~))~]~%" name what needs))
  (loop for (name what) in *process-faults*
        do (format stream "~(~15A~) ~A~%" name what)))
