;;;; The server of bench/truth.py: GetFeature of the RouteGuide with the delays of
;;;; tests/tools/load/known.lisp. Loaded after scripts/load.lisp; CLGRPC_DELAYS names them:
;;;; constant, exponential or stall. Prints `listening on HOST:PORT` and serves until it is ended.

(in-package #:clgrpc.scripts)

(load-strictly "clgrpc-tests/load")

(in-package #:clgrpc.tests.load)

(defun numbered (due)
  "A function like DUE that numbers calls in the order of their arrival."
  (let ((count (list -1)))
    (lambda (number now)
      (declare (ignore number))
      (funcall due (1+ (sb-ext:atomic-incf (car count))) now))))

(defparameter *delays*
  `(("constant" . ,(constant-delay 10000000))
    ("exponential" . ,(numbered (exponential-delay 20000000 5000)))
    ("stall" . ,(stalling 10000000000 1000000000))))

(grpc:tune-collector)
(call-with-known-server (lambda (address answered late)
                          (declare (ignore answered late))
                          (format t "listening on ~A~%" address)
                          (finish-output)
                          (loop (sleep 60)))
                        (cdr (assoc (uiop:getenv "CLGRPC_DELAYS") *delays* :test #'string=))
                        1)
