;;;; Service objects called directly, and redefinition.

(in-package #:clgrpc.tests.inproc)

(defmacro with-service ((service &rest handlers) &body body)
  `(let ((,service (make-probe ,@handlers)))
     (unwind-protect (progn ,@body)
       (when (method:direct-channel ,service)
         (grpc:close-channel (method:direct-channel ,service))))))

(test services-are-called-directly
  (with-service (service :ask #'double :watch #'count-up :collect #'add-up :chat #'echo)
    (check-four-kinds service)))

(test direct-calls-mean-what-others-do
  (with-log (:handler-error)
    (with-service (service :ask (lambda (note call)
                                  (case (number-of note)
                                    (0 (error "boom"))
                                    (1 (grpc:fail :not-found "no"))
                                    (2 (note (ceiling (grpc:time-remaining call))))
                                    (t note))))
      (is (eq :internal (status-of-error (caught (lab.bench:ask service (note 0))))))
      (is (eq :not-found (status-of-error (caught (lab.bench:ask service (note 1))))))
      (is (= 9 (number-of (lab.bench:ask service (note 2) :timeout 9))))
      (let ((note (note 3)))
        (is (not (eq note (lab.bench:ask service note))))))))

(defun core-of (channel)
  (inproc::channel-inproc-core channel))

(test streams-of-services-need-no-timer
  "A server stream without a deadline, of a service without a server, acquires no loop, whether it
is consumed or dropped; CLOSE-CHANNEL ends a dropped one."
  (with-service (service :watch #'count-up)
    (is (equal '(0 1 2) (numbers (lab.bench:watch service (note 3)))))
    (lab.bench:watch service (note 3))
    (let ((core (core-of (method:direct-channel service))))
      (is (null (inproc::inproc-core-loop core)))
      (is (null (inproc::inproc-core-waiting core)) "no channel to close: nothing keeps it")
      (is (eq :deadline-exceeded
              (let ((call (lab.bench:watch service (note 3) :timeout 0.05)))
                (wait-until (lambda () (grpc:call-status call)))
                (grpc:call-status call))))))
  (let* ((channel (grpc:service-channel (make-probe :watch #'count-up)))
         (call (lab.bench:watch channel (note 3))))
    (is (null (inproc::inproc-core-loop (core-of channel))))
    (grpc:close-channel channel)
    (is (eq :cancelled (grpc:call-status call)))))

(test channels-of-direct-calls-need-not-be-closed
  "The collector finds the channel, and nothing is logged, since its user has no way to close it."
  (let ((ends '()))
    (with-replaced (('calling:when-dropped
                     (lambda (function channel target end)
                       (push end ends)
                       (funcall function channel target (constantly nil)))))
      (with-service (service :watch #'count-up)
        (lab.bench:watch service (note 3) :timeout 1000)
        (let ((channel (grpc:service-channel service)))
          (unwind-protect (lab.bench:watch channel (note 3) :timeout 1000)
            (grpc:close-channel channel)))))
    ;; a second release would stop the loop of others
    (with-replaced (('calling:release-client-loop (constantly nil)))
      (is (equal '(t nil) (mapcar #'funcall ends))))))

(test services-within-handlers-are-just-called
  "A method that is called in a handler is a function: without copies or another call."
  (let ((inner nil) (same nil) (call-of-outer nil))
    (with-service (service :ask (handling (note)
                                  (setf same note)
                                  note))
      (setf inner service)
      (with-inproc (channel)
          (:ask (lambda (note call)
                  (setf call-of-outer call)
                  (let ((reply (lab.bench:ask inner note)))
                    (is (eq note reply))
                    (is (eq call method:*call*))
                    reply)))
        (ask channel (note 1)))
      (is-true same)
      (is-true call-of-outer))))

(defclass replaced (lab:bench) ())

(test redefinition-under-calls
  "A redefined handler takes effect at the next call and fails none."
  (flet ((define (number)
           (handler-bind ((warning #'muffle-warning))
             (eval `(defmethod lab.bench:ask ((service replaced) note &key)
                      (declare (ignore note))
                      (note ,number))))))
    (define 0)
    (let ((channel (grpc:service-channel (make-instance 'replaced)))
          (stop nil) (failures 0) (count 0))
      (unwind-protect
           (let ((caller (in-thread (loop until stop
                                          do (handler-case (lab.bench:ask channel (note 1))
                                               (error () (incf failures)))
                                             (incf count)))))
             (loop for i from 1 to 50
                   do (define i)
                      (is (= i (number-of (ask channel (note 1))))))
             (setf stop t)
             (sb-thread:join-thread caller)
             (is (= 0 failures))
             (is (plusp count)))
        (grpc:close-channel channel)))))

(defun define-things (fields methods)
  "Define the file things.proto again, as at the REPL while it is in use."
  (let ((*package* (find-package '#:clgrpc.tests.inproc)))
    (handler-bind ((warning #'muffle-warning))
      (eval `(grpc:define-proto "things.proto"
                 :source ,(format nil "syntax = \"proto3\"; package things;
                                       message Thing { int32 a = 1; ~A }
                                       service Things {
                                         rpc Get(Thing) returns (Thing); ~A }"
                                  fields methods))))))

(defun define-answer (method class)
  "Let METHOD of CLASS, names, return its request."
  (handler-bind ((warning #'muffle-warning))
    (eval `(defmethod ,method ((service ,class) thing &key) thing))))

(test redefined-messages-and-services
  "Channels continue; messages made before are still messages, and a new method is found."
  (define-things "" "")
  (let* ((class (class-name (eval `(defclass ,(gensym "MY-THINGS")
                                       (,(find-symbol "THINGS" '#:things))
                                     ()))))
         (channel (progn (define-answer (find-symbol "GET" '#:things.things) class)
                         (grpc:service-channel (make-instance class))))
         (old (grpc:make-message "things.Thing")))
    (flet ((get-thing (thing) (funcall (find-symbol "GET" '#:things.things) channel thing))
           (field (thing name) (grpc:field-value thing name)))
      (unwind-protect
           (progn
             (setf (grpc:field-value old "a") 3)
             (is (= 3 (field (get-thing old) "a")))
             (define-things "string b = 2;" "rpc Put(Thing) returns (Thing);")
             (is (= 3 (field (get-thing old) "a")))
             (let ((new (grpc:make-message "things.Thing")))
               (setf (grpc:field-value new "b") "x")
               (is (string= "x" (field (get-thing new) "b")))
               (let ((put (find-symbol "PUT" '#:things.things)))
                 (is (eq :unimplemented (status-of-error (caught (funcall put channel new)))))
                 (define-answer put class)
                 (is (string= "x" (field (funcall put channel new) "b"))))))
        (grpc:close-channel channel)))))
