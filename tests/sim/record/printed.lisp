;;;; How objects are printed: one of each class that servers, channels, stores and their simulation
;;;; consist of.

(in-package #:clgrpc.tests.record)

(defparameter *unsteady*
  '("CALLEE" "CHANNEL-TRACE" "METHOD-TABLE" "METHOD-RECORD" "TARGET-RECORD" "SERIES" "RUN")
  "Classes of which other tests leave objects behind, or whose objects print a number that counts
all of the process.")

(defun printed-class-p (class)
  "True if CLASS is one of ours that prints the same in each order of the tests."
  (and (typep class 'class)
       (let ((package (package-name (symbol-package (class-name class)))))
         (and (eql 0 (search "CLGRPC" package))
              (not (search "TESTS" package))
              (not (member (class-name class) *unsteady* :test #'string=))))))

(defun printed-classes ()
  "The classes with a method of PRINT-OBJECT of their own."
  (remove-if-not #'printed-class-p
                 (mapcar (lambda (method) (first (sb-mop:method-specializers method)))
                         (sb-mop:generic-function-methods #'print-object))))

(defun parts (object)
  "The objects to which OBJECT leads."
  (typecase object
    (cons (list (car object) (cdr object)))
    (simple-vector (coerce object 'list))
    (hash-table (loop for key being the hash-keys of object using (hash-value value)
                      collect key collect value))
    ((or package class sb-thread:thread sb-thread:mutex stream function) '())
    ;; a method is global, and leads to the server that it has called last
    (method:rpc-method (list (method:rpc-method-request-type object)
                             (method:rpc-method-response-type object)))
    (structure-object
     (loop for slot in (sb-kernel:dd-slots
                        (sb-kernel:find-defstruct-description (type-of object)))
           when (eq t (sb-kernel:dsd-raw-type slot))
             collect (sb-kernel:%instance-ref object (sb-kernel:dsd-index slot))))
    (standard-object
     (loop for slot in (sb-mop:class-slots (class-of object))
           for name = (sb-mop:slot-definition-name slot)
           when (slot-boundp object name) collect (slot-value object name)))))

(defun examples (root)
  "From each class of ours that is printed by its own method, and that ROOT leads to, the first
object, in a table."
  (let ((seen (make-hash-table :test 'eq)) (found (make-hash-table :test 'eq))
        (classes (printed-classes)) (left (list root)))
    (loop while left
          do (let ((next '()))
               (dolist (object (nreverse left))
                 (unless (or (typep object '(or symbol number character)) (gethash object seen))
                   (setf (gethash object seen) t)
                   (let ((class (class-of object)))
                     (when (and (member class classes) (not (gethash class found)))
                       (setf (gethash class found) object)))
                   (dolist (part (parts object)) (push part next))))
               (setf left next)))
    found))

(defun print-text (object)
  "How OBJECT is printed, with whole names of packages and without its address."
  (let* ((text (let ((*print-pretty* nil) (*package* (find-package '#:keyword)))
                 (prin1-to-string object)))
         (start (search " {" text :from-end t)))
    (if start (concatenate 'string (subseq text 0 start) " {}>") text)))

(defun write-examples (root)
  (let ((lines (loop for class being the hash-keys of (examples root) using (hash-value object)
                     collect (format nil "~(~A~): ~A" (class-name class) (print-text object)))))
    (format t "~{~A~%~}" (sort lines #'string<))))

(define-record printed-forms (server client :write 'write-examples :observed nil)
    "An object of each class, amid calls, is printed as recorded."
  (multiple-value-bind (names address) (sim-tests:add-name-server)
    (dns-tests:set-records names "svc.test" dns:+a+ "10.0.0.3" "10.0.0.4")
    (add-store)
    (sim:add-host "node" #'serve-workflows)
    (dolist (name '("one" "two"))
      (let ((address (format nil "~A:50051" name)))
        (sim:add-host name (lambda () (serve-notes server :listen address)))))
    (sim:on-host ((sim:add-host "client"))
      (let ((channels (loop for policy in (append sim-tests:*watchful-policies*
                                                  sim-tests:*other-policies*)
                            collect (grpc:make-channel
                                     (format nil "dns://~A/svc.test:50051" address)
                                     :observer client
                                     :service-config
                                     (json (format nil "{'loadBalancingConfig':[~A],'methodConfig':[
                                              {'name':[{}],'retryPolicy':{'maxAttempts':3,
                                              'initialBackoff':'0.1s','maxBackoff':'1s',
                                              'backoffMultiplier':2,
                                              'retryableStatusCodes':['UNAVAILABLE']}}],
                                              'retryThrottling':{'maxTokens':10,
                                              'tokenRatio':0.5}}" policy))))))
        (push (lambda (drain) (declare (ignore drain)) (mapc #'grpc:close-channel channels))
              (sim:host-processes (sim:current-host)))
        (dolist (channel channels)
          (asks channel 1)
          (lab.bench:watch channel (note 1000 :body 1000))
          (grpc:call-async #'lab.bench:ask channel (note 408)))
        (sim:wait-for 1/10)))))
