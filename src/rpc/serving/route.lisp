;;;; Routes from methods to handlers. A server, or an object that represents one within the image,
;;;; makes a table of routes for its services. A route reaches the handler through the method's
;;;; BINDING, which redefinition swaps. A transport that needs more slots includes the structure in
;;;; one of its own.

(in-package #:clgrpc.serving)

(defstruct (route (:copier nil))
  "The route of a path."
  (server nil)                          ; the server, or an object in its place
  (epoch 0 :type fixnum)                ; that of the table it is from
  (method nil :type (or null rpc-method)) ; nil for a path that leads nowhere
  (service nil)                         ; the object whose handler it is
  (binding nil :type (or null binding)) ; of the handler
  (interceptors '() :type list)         ; around it, the outermost first
  (execution :auto :type (member :inline :blocking :auto)) ; where it runs, see START-SERVER
  (long-octets 0 :type index))          ; of its recent answers, 0 if all were short

(defmethod print-object ((route route) stream)
  (print-unreadable-object (route stream :type t)
    (format stream "~:[unknown~;~:*~A~]" (route-method route))))

;;; Which methods give long answers, see room.lisp: a hint that several threads set without a lock

(defun note-answer (route &optional (octets 0))
  "Note in ROUTE that a handler has a long message of OCTETS to send or, if OCTETS is 0, that it has
returned a short answer after long ones."
  (let ((less (floor (* 3 (route-long-octets route)) 4)))
    (setf (route-long-octets route)
          (cond ((plusp octets) (max octets less))
                ((< less +long-octets+) 0)
                (t less)))))

;;; Tables

(defstruct (route-table (:copier nil))
  "The routes of a server, or of an object that represents one. A table is immutable; when a service
is redefined, a new table replaces it."
  (server nil)                          ; the server, or an object in its place
  (epoch 0 :type fixnum)                ; one more than that of the table before
  (routes (make-hash-table :test 'equal) :type hash-table) ; by path
  ;; a function of another path that returns a ROUTE, or nil; nil if no service takes other paths
  (unknown nil :type (or null function)))

(defun execution-of (execution function-name)
  "The execution of the method named FUNCTION-NAME under EXECUTION, the argument of START-SERVER:
:INLINE, :BLOCKING or :AUTO."
  (let ((chosen (if (listp execution)
                    (or (cdr (assoc function-name execution)) :auto)
                    execution)))
    (unless (member chosen '(:inline :blocking :auto))
      (misuse "~S is not valid for :execution: give :inline, :blocking, :auto, or an alist from ~
               methods to these."
              chosen))
    ;; no thread can take over the loop of a simulated world
    (if (and (eq :auto chosen) (loop:simulated-p)) :blocking chosen)))

(defun make-routes (server services execution make-route &key (epoch 1) interceptors)
  "Return the ROUTE-TABLE of SERVER for SERVICES, a list of service objects, with INTERCEPTORS,
as CHECK-INTERCEPTORS takes it. MAKE-ROUTE makes a ROUTE from the keywords of its slots."
  (let ((table (make-route-table :server server :epoch epoch)))
    (dolist (service services table)
      (dolist (method (service-methods service))
        (add-route table make-route method service
                   (execution-of execution (rpc-method-function-name method))
                   (interceptors-for interceptors method)))
      (when (unknown-method service "/unknown/method")
        (when (route-table-unknown table)
          (misuse "Two of the services take methods that no service has."))
        (setf (route-table-unknown table)
              (unknown-router table make-route service (execution-of execution nil)
                              interceptors))))))

(defun unknown-router (table make-route service execution interceptors)
  "A function for the slot UNKNOWN of TABLE, by which SERVICE takes calls of methods that no service
has."
  (lambda (path)
    (let ((method (unknown-method service path)))
      (and method
           (new-route table make-route method service execution
                      (interceptors-for interceptors method))))))

(defun find-unknown-route (table path)
  "A new route of TABLE for PATH, which none of its methods has, or nil. The table does not keep
it."
  (let ((unknown (route-table-unknown table)))
    (and unknown (funcall unknown path))))

(defun add-route (table make-route method service execution interceptors)
  (let ((path (rpc-method-path method)))
    (when (gethash path (route-table-routes table))
      (misuse "Two of the services have the method ~A." path))
    (setf (gethash path (route-table-routes table))
          (new-route table make-route method service execution interceptors))))

(defun new-route (table make-route method service execution interceptors)
  (funcall make-route
           :server (route-table-server table) :epoch (route-table-epoch table)
           :method method :service service :execution execution
           :interceptors interceptors
           :binding (method-binding service method)))
