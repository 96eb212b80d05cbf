;;;; What a unary call conses, and what the octets are. Without a collection between them, a census
;;;; of the heap before and one after many calls differ by what these calls have allocated; the sum
;;;; by GET-BYTES-CONSED says whether the census is whole. Loaded behind scripts/load.lisp by
;;;; bench/allocation.py, in one of two roles:
;;;;
;;;; - With an address in CLGRPC_ADDRESS it calls that server, first blocking, then with futures,
;;;;   and prints a line of JSON for each.
;;;; - Else it serves `bench` and prints `listening on HOST:PORT`; a line on standard input takes
;;;;   the first census, the next prints a line of JSON with what came since.

(in-package #:clgrpc.scripts)

(load-strictly "clgrpc/tools")

(defpackage #:clgrpc.allocation
  (:use #:cl)
  (:local-nicknames (#:grpc #:clgrpc) (#:tools #:clgrpc.tools)))

(in-package #:clgrpc.allocation)

;;; A census

(defun kind-of (object)
  "A name for what OBJECT is."
  (typecase object
    (cons "cons")
    (structure-object (structure-kind (type-of object)))
    (simple-vector "simple-vector")
    (string "string")
    (array (format nil "vector of ~(~A~)" (array-element-type object)))
    (function (format nil "closure ~(~A~)" (sb-kernel:%fun-name (sb-kernel:%fun-fun object))))
    (t (format nil "~(~A~)" (type-of object)))))

(defun structure-kind (type)
  "What instances of TYPE are. Names of messages have a hash behind a dot, to tell definitions
apart."
  (let* ((name (format nil "~(~S~)" type))
         (message (and (search "::%" name) (position #\. name :from-end t))))
    (if message
        (format nil "message ~A" (remove #\% (subseq name 0 message)))
        (format nil "structure ~A" name))))

(defun key-of (object)
  "Something by which objects of one kind can be counted without making garbage."
  (typecase object
    (cons 'cons)
    ((satisfies sb-kernel:%instancep) (sb-kernel:%instance-layout object))
    (function (if (sb-kernel:closurep object) (sb-kernel:%closure-fun object) 'function))
    (t (sb-kernel:widetag-of object))))

(defun take-census ()
  "A hash table from key to (an object, octets of all, how many)."
  (let ((table (make-hash-table :test 'eq :size 4096)))
    (sb-sys:without-gcing
      (sb-vm:map-allocated-objects
       (lambda (object type size)
         (declare (ignore type))
         (let ((entry (or (gethash (key-of object) table)
                          (setf (gethash (key-of object) table) (list object 0 0)))))
           (incf (the fixnum (second entry)) (the fixnum size))
           (incf (the fixnum (third entry)))))
       :dynamic))
    table))

(defun print-difference (name before after calls consed)
  "Print a line of JSON: what AFTER has more than BEFORE, per call."
  (format t "{\"name\":~S,\"calls\":~D,\"consed_per_call\":~,1F,\"kinds\":["
          name calls (/ consed calls))
  (let ((comma ""))
    (flet ((print-kind (key entry)
             (destructuring-bind (object octets count) entry
               (destructuring-bind (&optional had (had-octets 0) (had-count 0)) (gethash key before)
                 (declare (ignore had))
                 (let ((more (/ (- octets had-octets) calls)))
                   (when (>= more 1/2)
                     (format t "~A{\"kind\":~S,\"octets\":~,1F,\"objects\":~,2F}" comma
                             (kind-of object) more (/ (- count had-count) calls))
                     (setf comma ",")))))))
      (maphash #'print-kind after)))
  (format t "]}~%")
  (finish-output))

(defun call-with-census (name calls-made function)
  "Call FUNCTION between two censuses; CALLS-MADE counts the calls so far."
  (declare (type function calls-made function))
  (let* ((before (take-census))
         (calls (funcall calls-made))
         (consed (sb-ext:get-bytes-consed))
         (collections sb-kernel::*gc-epoch*))
    (funcall function)
    (let ((consed (- (sb-ext:get-bytes-consed) consed))
          (calls (- (funcall calls-made) calls)))
      (unless (eq collections sb-kernel::*gc-epoch*)
        (error "A garbage collection came between the two."))
      (print-difference name before (take-census) (max calls 1) consed))))

;;; Roles

(defun serve ()
  (let ((server (multiple-value-bind (services execution)
                    (tools::offered-services (tools::parse-services "bench"))
                  (grpc:start-server services :execution execution))))
    (format t "listening on ~A~%" (grpc:server-address server))
    (finish-output)
    (when (read-line *standard-input* nil)
      (call-with-census "server" (lambda () (getf (grpc:server-statistics server) :calls))
                        #'read-line))))

(defparameter *calls* 10000)

(defun call (address)
  (grpc:with-channel (channel address)
    (flet ((blocking (count)
             (dotimes (i count)
               (routeguide.route-guide:get-feature channel tools::*bench-point*)))
           (ahead (count &aux (futures (make-array 100)))
             (dotimes (i (floor count 100))
               (map-into futures
                         (lambda ()
                           (grpc:call-async #'routeguide.route-guide:get-feature channel
                                            tools::*bench-point*)))
               (map nil #'grpc:await futures))))
      (loop for (name function) in `(("client, blocking" ,#'blocking)
                                     ("client, call-async" ,#'ahead))
            do (let ((calls 0))
                 (funcall function 1000)
                 (call-with-census name (lambda () calls)
                                   (lambda () (funcall function *calls*) (incf calls *calls*))))))))

(clgrpc:tune-collector)
(let ((address (uiop:getenv "CLGRPC_ADDRESS")))
  (if address (call address) (serve)))
(clgrpc.scripts:quit 0)
