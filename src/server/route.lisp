;;;; Routes: which handler a :path leads to. A server makes a ROUTE for each method of its services;
;;;; the HPACK entry of a path remembers its route, so that a repeated path costs no look-up. The
;;;; handler is reached through the method's BINDING, which redefinition swaps. An unknown path is
;;;; remembered with the server's epoch, which grows whenever routes are added.

(in-package #:clgrpc.server)

(defstruct (route (:copier nil))
  "Where a path leads. METHOD is nil for a path that leads nowhere."
  (server nil)
  (epoch 0 :type fixnum)
  (method nil :type (or null rpc-method))
  (service nil)
  (binding nil :type (or null rpc:binding))
  (interceptors '() :type list)
  (execution :auto :type (member :inline :blocking :auto))
  (blocks nil :type (member nil t :waits)) ; :auto, and it has overstayed, or waited beside others
  (quick 0 :type fixnum)                ; how many calls in a row have been quick since
  (late 0 :type sb-ext:word)            ; how many that overstayed run still (atomic)
  (long-octets 0 :type index)           ; how long its answers have been lately; 0 if none was long
  (kept nil :type (or null function)))  ; in-process: the handler that answered later, last time

(declaim (sb-ext:freeze-type route))

(defmethod print-object ((route route) stream)
  (print-unreadable-object (route stream :type t)
    (format stream "~:[unknown~;~:*~A~] ~(~A~)~:[~; (blocks)~]" (route-method route)
            (route-execution route) (route-blocks route))))

;;; Which methods block. Marks are hints that several threads set without a lock.

(defconstant +quick-ns+ 100000
  "A handler that is done in this time does not block.")
(defconstant +quick-calls+ 64
  "After so many quick calls in a row a method is taken not to block.")

(define-hot (runs-inline-p :inline t) ((route route) (alone boolean)) boolean
  "True if the handler of ROUTE is to run on the loop; ALONE says that no other call is there."
  (case (route-execution route)
    (:inline t)
    (:auto (case (route-blocks route)
             ((nil) t)
             (:waits alone)))))

(defun note-waiting (route)
  "A handler of ROUTE waits on the loop while other user code is due: from now on they start on
reserve threads, unless they are alone."
  (when (and (eq :auto (route-execution route)) (null (route-blocks route)))
    (setf (route-blocks route) :waits)))

(defun note-overstay (route)
  "A handler of ROUTE has lost the loop, or handed it over, and runs on: from now on they start on
reserve threads, of which each connection has its share, and not before it has returned on the loop
again: each one that overstays takes a thread."
  (sb-ext:atomic-incf (route-late route))
  (trace-event :loop :method-blocks :method (rpc:rpc-method-path (route-method route)))
  (setf (route-quick route) 0)
  (when (and (eq :auto (route-execution route)) (null (route-blocks route)))
    (setf (route-blocks route) t)))

(defun late-handler-ended (route)
  "A handler of ROUTE that NOTE-OVERSTAY was called for, or is about to be, has returned."
  (sb-ext:atomic-decf (route-late route))
  nil)

(define-hot note-duration ((route route) (duration-ns (unsigned-byte 62))) null
  "A handler of ROUTE took so long on a reserve thread."
  (cond ((> duration-ns +quick-ns+) (setf (route-quick route) 0))
        ((and (>= (incf (route-quick route)) +quick-calls+)
              (zerop (route-late route)))
         (setf (route-quick route) 0
               (route-blocks route) nil)))
  nil)

;;; Which methods give long answers, see room.lisp. A hint as well.

(defun note-long-answer (route octets)
  "A handler of ROUTE has a message of OCTETS to send, a long one."
  (setf (route-long-octets route) (max octets (floor (* 3 (route-long-octets route)) 4))))

(defun note-short-answer (route)
  "A handler of ROUTE has given a short answer, where there were long ones before."
  (setf (route-long-octets route)
        (let ((less (floor (* 3 (route-long-octets route)) 4)))
          (if (< less rpc:+long-octets+) 0 less))))

(defun promise-answer (route)
  "The octets that were promised for an answer of ROUTE, which gives long ones; nil if there is no
room for one."
  (let* ((long (* 2 (route-long-octets route)))
         (method (route-method route)))
    (cond ((not (promise-octets long)) nil)
          ((member (rpc-method-kind method) '(:unary :client-streaming)) long)
          ;; who knows when such a handler returns
          (t (settle-octets long) 0))))

(define-hot (settle-answer :inline t) ((promised index)) null
  "Undo PROMISE-ANSWER: the message is there now, or will not be."
  (unless (zerop promised) (settle-octets promised))
  nil)

(defstruct (route-table (:copier nil))
  "The routes of a server by path; not changed once it is made. When a service is defined
anew, hubs get another, of the next epoch."
  (server nil)
  (epoch 0 :type fixnum)
  (routes (make-hash-table :test 'equal) :type hash-table))

(defun execution-of (execution function-name)
  "What EXECUTION, the argument of start-server, says of the method named FUNCTION-NAME."
  (let ((chosen (if (listp execution)
                    (or (cdr (assoc function-name execution)) :auto)
                    execution)))
    (unless (member chosen '(:inline :blocking :auto))
      (misuse "~S is no execution: :inline, :blocking, :auto, or an alist from method to one."
              chosen))
    ;; no thread can take over the loop of a simulated world
    (if (and (eq :auto chosen) (loop:simulated-p)) :blocking chosen)))

(defun make-routes (server services execution &key (epoch 1) interceptors)
  "Return the ROUTE-TABLE of SERVER for SERVICES, a list of service objects, with INTERCEPTORS."
  (let ((table (make-route-table :server server :epoch epoch)))
    (dolist (service services table)
      (dolist (method (rpc:service-methods service))
        (add-route table method service
                   (execution-of execution (rpc:rpc-method-function-name method))
                   interceptors)))))

(defun check-execution (execution table)
  "Signal MISUSE if EXECUTION names a method that TABLE has not."
  (let ((names (loop for route being the hash-values of (route-table-routes table)
                     collect (rpc:rpc-method-function-name (route-method route)))))
    (loop for (name) in (if (listp execution) execution '())
          unless (member name names)
            do (misuse ":execution names ~S, which is no method of the services." name))))

(defun add-route (table method service execution interceptors)
  (let ((path (rpc:rpc-method-path method))
        (function (fdefinition (rpc:rpc-method-function-name method))))
    (when (gethash path (route-table-routes table))
      (misuse "Two of the services have the method ~A." (rpc:rpc-method-path method)))
    (setf (gethash path (route-table-routes table))
          (make-route :server (route-table-server table) :epoch (route-table-epoch table)
                      :method method :service service :execution execution
                      :interceptors interceptors
                      :binding (rpc:ensure-binding function (class-of service))))))

(define-hot route-of ((table route-table) (field hpack:field)) route
  "The route that the path FIELD leads to."
  (let ((memo (hpack:field-memo field)))
    (if (and (route-p memo)
             (eq (route-server memo) (route-table-server table))
             (= (route-epoch memo) (route-table-epoch table)))
        memo
        (setf (hpack:field-memo field) (find-route table field)))))

(defun find-route (table field)
  (or (gethash (hpack:field-value-string field) (route-table-routes table))
      (make-route :server (route-table-server table) :epoch (route-table-epoch table))))

(define-hot method-route ((table route-table) (method rpc-method)) (or null route)
  "The route of TABLE to METHOD, within the image, or nil if it has none."
  (let ((memo (rpc:rpc-method-route method)))
    (if (and (route-p memo)
             (eq (route-server memo) (route-table-server table))
             (= (route-epoch memo) (route-table-epoch table)))
        memo
        (let ((route (gethash (rpc:rpc-method-path method) (route-table-routes table))))
          (when route (setf (rpc:rpc-method-route method) route))))))
