;;;; The choice of traces to record, in OpenTelemetry's terms: always_on, always_off, traceidratio,
;;;; and parentbased, which follows the decision received with the parent, so that a trace is
;;;; recorded completely or not at all. The ratio depends on the trace id alone, on the same bits as
;;;; in OpenTelemetry's implementations: services with the same ratio choose the same traces. All
;;;; code here is pure, except that errors in users' functions go to the log.

(in-package #:clgrpc.trace)

(deftype sampler ()
  "A function of the PARENT, a context or nil, and the SPAN-CONTEXT of a span, which returns true if
the span must be recorded."
  'function)

(defun ratio-bound (ratio)
  "The bound for RATIO: a trace is recorded if the lower half of its id, without the last bit, is
less than this bound."
  (floor (* (rational ratio) (ash 1 63))))

(defun ratio-sampler (ratio)
  "The sampler traceidratio of RATIO, from 0 to 1."
  (let ((bound (ratio-bound ratio)))
    (declare (type (integer 0 #.(ash 1 63)) bound))
    (lambda (parent span-context)
      (declare (ignore parent))
      (< (ash (span-context-low span-context) -1) bound))))

(defun parent-sampler (root &key (remote-parent-sampled :always-on)
                              (remote-parent-not-sampled :always-off)
                              (local-parent-sampled :always-on)
                              (local-parent-not-sampled :always-off))
  "The sampler parentbased: ROOT decides for spans without a parent; each of the other samplers for
spans whose parent is remote or local, and sampled or not, as its name says."
  (let ((root (find-sampler root))
        (remote (find-sampler remote-parent-sampled))
        (not-remote (find-sampler remote-parent-not-sampled))
        (local (find-sampler local-parent-sampled))
        (not-local (find-sampler local-parent-not-sampled)))
    (declare (type sampler root remote not-remote local not-local))
    (lambda (parent span-context)
      (declare (type (or null trace-context) parent))
      (funcall (cond ((null parent) root)
                     ((context-remote parent) (if (context-sampled parent) remote not-remote))
                     (t (if (context-sampled parent) local not-local)))
               parent span-context))))

(defun find-sampler (form)
  "The sampler for FORM, which is as for MAKE-TRACING. Signal MISUSE if FORM is invalid."
  (flet ((wrong ()
           (misuse "A sampler is :always-on, :always-off, (:trace-id-ratio RATIO) with a ratio ~
                    from 0 to 1, (:parent-based ROOT) or a function of a parent and a trace id, ~
                    not ~S."
                   form)))
    (cond ((eq :always-on form) (constantly t))
          ((eq :always-off form) (constantly nil))
          ((functionp form)
           (lambda (parent span-context)
             (values (loop:guarding (:observer-error)
                       (funcall form parent (id-octets (span-context-high span-context)
                                                       (span-context-low span-context)))))))
          ((typep form '(cons (eql :trace-id-ratio) (cons (real 0 1) null)))
           (ratio-sampler (second form)))
          ((and (typep form '(cons (eql :parent-based) (cons t list)))
                (evenp (length (cddr form)))
                (loop for name in (cddr form) by #'cddr
                      always (member name '(:remote-parent-sampled :remote-parent-not-sampled
                                            :local-parent-sampled :local-parent-not-sampled))))
           (apply #'parent-sampler (rest form)))
          (t (wrong)))))

(defconstant +no-bound+ (1- (ash 1 64))
  "The value of RATIO-BOUND if the id alone does not determine whether a trace is recorded.")

(defun root-bound (form)
  "The RATIO-BOUND of spans without a parent, for the sampler of FORM; +NO-BOUND+ if it has none."
  (cond ((eq :always-off form) 0)
        ((atom form) +no-bound+)
        ((eq :trace-id-ratio (first form)) (ratio-bound (second form)))
        (t (root-bound (second form)))))

(defun id-beyond (id bound)
  "ID, the lower half of a trace's id, changed if necessary so that BOUND, a value of ROOT-BOUND,
excludes the trace from recording."
  (let ((half (ash id -1)))
    (if (< half bound (ash 1 63))
        (logior (ash (+ bound (mod half (- (ash 1 63) bound))) 1) (logand id 1))
        id)))
