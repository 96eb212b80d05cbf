;;;; The routes of methods within the image. A method remembers its route, so that a call of it
;;;; needs no look-up.

(in-package #:clgrpc.inproc)

(defun renew-table (callee)
  "Make the routes of CALLEE again, because its services may have been redefined."
  (sb-thread:with-mutex ((callee-lock callee))
    (setf (callee-table callee)
          (serving:make-routes callee (callee-services callee) #'make-inproc-route
                               :interceptors (callee-interceptors callee)
                               :before (callee-table callee)))))

(define-hot method-route ((table serving:route-table) (method rpc-method)) (or null inproc-route)
  "The route of TABLE to METHOD; nil if TABLE has none. The method remembers the route."
  (let ((memo (method:rpc-method-route method)))
    (if (and (inproc-route-p memo)
             (serving:route-current-p memo table))
        memo
        (let ((route (gethash (method:rpc-method-path method) (serving:route-table-routes table))))
          (when route (setf (method:rpc-method-route method) route))))))

(define-hot route-to ((callee callee) (method rpc-method)) (or null inproc-route)
  "The route of CALLEE to METHOD; nil if CALLEE has none."
  (flet ((route () (method-route (the serving:route-table (callee-table callee)) method)))
    (declare (inline route))
    (or (route)
        (progn (renew-table callee) (route)))))

(defun forget-routes (callee)
  "Make every method forget its route of CALLEE, which begins no more calls, because methods are
global objects and would keep CALLEE from the collector. If another thread calls a method at the
same time, the method may remember its route again, until its next call."
  (when (callee-table callee)           ; the callee of relays has no services
    (loop for route being the hash-values of (serving:route-table-routes (callee-table callee))
          for memo = (method:rpc-method-route (route-method route))
          when (and (inproc-route-p memo) (eq callee (route-server memo)))
            do (setf (method:rpc-method-route (route-method route)) nil))))

(define-hot keeps-p ((route inproc-route)) boolean
  "True if the handler of ROUTE kept its call the last time, and has not been redefined since."
  (when-let ((kept (route-kept route)))
    (eq kept (method:binding-function (the method:binding (route-binding route))))))
