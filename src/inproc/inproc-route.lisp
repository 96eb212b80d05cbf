;;;; The routes of methods within the image. A method remembers its route, so that a call of it
;;;; needs no look-up.

(in-package #:clgrpc.inproc)

(defun renew-table (callee)
  "Make the routes of CALLEE again: its services may have been redefined."
  (sb-thread:with-mutex ((callee-lock callee))
    (setf (callee-table callee)
          (serving:make-routes callee (callee-services callee) #'make-inproc-route
                               :interceptors (callee-interceptors callee)
                               :before (callee-table callee)))))

(define-hot method-route ((table serving:route-table) (method rpc-method)) (or null inproc-route)
  "The route of TABLE to METHOD, or nil. The method remembers the route."
  (let ((memo (method:rpc-method-route method)))
    (if (and (inproc-route-p memo)
             (serving:route-current-p memo table))
        memo
        (let ((route (gethash (method:rpc-method-path method) (serving:route-table-routes table))))
          (when route (setf (method:rpc-method-route method) route))))))

(define-hot route-to ((callee callee) (method rpc-method)) (or null inproc-route)
  "The route of CALLEE to METHOD, or nil."
  (flet ((route () (method-route (the serving:route-table (callee-table callee)) method)))
    (declare (inline route))
    (or (route)
        (progn (renew-table callee) (route)))))

(define-hot keeps-p ((route inproc-route)) boolean
  "True if the handler of ROUTE kept its call when it was last called, and has not been redefined
since."
  (let ((kept (route-kept route)))
    (and kept
         (eq kept (method:binding-function (the method:binding (route-binding route)))))))
