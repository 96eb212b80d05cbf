;;;; Routes from methods to handlers. A server, or an object that represents one within the image,
;;;; makes a table of routes for its services. A route reaches the handler through the method's
;;;; BINDING, which redefinition swaps. A transport that needs more slots defines a structure that
;;;; includes this one.

(in-package #:clgrpc.serving)

(defstruct (route (:copier nil))
  "The route of a path."
  (server nil)                          ; the server, or an object in its place
  (epoch 0 :type fixnum)                ; the epoch of the table that made it
  (method nil :type (or null rpc-method)) ; nil for a path that no service handles
  (service nil)                         ; the service object whose handler the route calls
  (binding nil :type (or null binding)) ; the binding of the handler
  (interceptors '() :type list)         ; the interceptors around the handler, the outermost first
  (long-octets 0 :type index))          ; the length of recent long answers; 0 if all were short

(define-printer (route route)
  "~:[unknown~;~:*~A~]" (route-method route))

;;; Methods with long answers, see room.lisp: a hint that several threads set without a lock

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
  (epoch 0 :type fixnum)                ; one more than the epoch of the previous table
  (make-route nil :type function)       ; makes a ROUTE from the keywords of its slots
  (routes (make-hash-table :test 'equal) :type hash-table) ; routes by path
  ;; a function of another path that returns a ROUTE, or nil; nil if no service takes other paths
  (unknown nil :type (or null function)))

(define-hot (route-current-p :inline t) ((route route) (table route-table)) boolean
  "True if ROUTE belongs to TABLE. Code that keeps routes calls this before it uses a route."
  (and (eq (route-server route) (route-table-server table))
       (= (route-epoch route) (route-table-epoch table))))

(defun make-routes (server services make-route &key before interceptors)
  "Return the ROUTE-TABLE of SERVER for SERVICES, a list of service objects, with INTERCEPTORS,
as CHECK-INTERCEPTORS takes it. MAKE-ROUTE makes a ROUTE from the keywords of its slots. BEFORE is
the table that the new one replaces, or nil."
  (let ((table (make-route-table :server server :make-route make-route
                                 :epoch (if before (1+ (route-table-epoch before)) 1))))
    (dolist (service services table)
      (dolist (method (service-methods service))
        (add-route table method service (interceptors-for interceptors method)))
      (when (unknown-method service "/unknown/method")
        (when (route-table-unknown table)
          (misuse "Two of the services handle methods that no service has."))
        (setf (route-table-unknown table) (unknown-router table service interceptors))))))

(defun unknown-router (table service interceptors)
  "A function for the slot UNKNOWN of TABLE, by which SERVICE handles calls of methods that no
service has."
  (lambda (path)
    (let ((method (unknown-method service path)))
      (and method
           (new-route table method service (interceptors-for interceptors method))))))

(defun find-unknown-route (table path)
  "A new route of TABLE for PATH, which belongs to none of its methods. If no service takes such
calls, the route has no handler. TABLE does not keep the route."
  (let ((unknown (route-table-unknown table)))
    (or (and unknown (funcall unknown path))
        (funcall (route-table-make-route table)
                 :server (route-table-server table) :epoch (route-table-epoch table)))))

(defun add-route (table method service interceptors)
  (let ((path (rpc-method-path method)))
    (when (gethash path (route-table-routes table))
      (misuse "Two of the services have the method ~A." path))
    (setf (gethash path (route-table-routes table))
          (new-route table method service interceptors))))

(defun new-route (table method service interceptors)
  (funcall (route-table-make-route table)
           :server (route-table-server table) :epoch (route-table-epoch table)
           :method method :service service :interceptors interceptors
           :binding (method-binding service method)))
